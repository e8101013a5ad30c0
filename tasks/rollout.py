"""Taking a batch of trajectories from the running fleet."""

from libra_core.types.reports import RolloutReport
from libra_core.types.session import SessionRef
from tasks.connection import connect
from tasks.options import core_task


@core_task(task_run_name="rollout-{step:05d}")
def generate_trajectories(session: SessionRef, step: int) -> RolloutReport:
    """Wait until the step's groups are complete; the fleet goes on with the next ones meanwhile."""
    return connect(session).rollout.take_batch(step)
