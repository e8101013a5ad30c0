"""Writing an iteration down: run folder and tracker first, Prefect's artifacts after them."""

from collections.abc import Mapping

from prefect.artifacts import create_table_artifact

from libra_core.tracking.metrics import iteration_metrics
from libra_core.tracking.recorder import recorder_for
from libra_core.types.reports import IterationReport
from libra_core.types.session import SessionRef
from tasks.connection import connect
from tasks.options import core_task
from tasks.pictures import publish

ITERATION_ARTIFACT = "iteration-metrics"


@core_task(task_run_name="log-{report.step:05d}")
def log_iteration(session: SessionRef, report: IterationReport, num_samples: int = 0) -> None:
    """Record the iteration, with `num_samples` of its trajectories as text, and show it in Prefect."""
    recorder = recorder_for(session.run_id)
    if num_samples:
        recorder.add_samples(report.step, connect(session).rollout.sample_trajectories(report.rollout.batch_id, num_samples))
    recorder.add_lengths(connect(session).rollout.lengths(report.rollout.batch_id))
    recorder.record(report)
    show_iteration(report.step, iteration_metrics(report))


def show_iteration(step: int, metrics: Mapping[str, float]) -> None:
    """A table artifact."""
    table = [{"metric": name, "value": round(value, 5)} for name, value in metrics.items()]
    description = f"### Iteration {step}"
    publish(
        f"the table of iteration {step}",
        lambda: create_table_artifact(key=ITERATION_ARTIFACT, table=table, description=description),
    )
