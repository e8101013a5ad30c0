"""Scoring a batch."""

from libra_core.types.ids import BatchId
from libra_core.types.reports import RewardReport
from libra_core.types.session import SessionRef
from tasks.connection import connect
from tasks.options import core_task


@core_task(task_run_name="reward-{batch_id}")
def score_trajectories(session: SessionRef, batch_id: BatchId) -> RewardReport:
    """Grade every trajectory of the batch in place and report the reward spread."""
    return connect(session).reward.score(batch_id)
