"""The optimizer step, the publication of its weights, and checkpoints."""

from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.reports import PublicationReport, UpdateReport
from libra_core.types.session import SessionRef
from tasks.connection import connect
from tasks.options import core_task


@core_task(task_run_name="update-{batch_id}")
def update_policy(session: SessionRef, batch_id: BatchId, expected_version: PolicyVersion) -> UpdateReport:
    """Learn from the batch, exactly once however often it is called."""
    return connect(session).trainer.update(batch_id, expected_version)


@core_task(task_run_name="publish-v{version}")
def publish_weights(session: SessionRef, version: PolicyVersion) -> PublicationReport:
    """Bring the weights of this version onto every engine; the report is of the newest publication that has ended."""
    return connect(session).rollout.begin_publication(version)


@core_task(task_run_name="checkpoint-{step:05d}")
def save_checkpoint(session: SessionRef, step: int) -> str:
    """Write what a resumed run needs after `step` finished iterations, once the engines have its weights; returns the folder."""
    clients = connect(session)
    clients.rollout.finish_publication()
    return clients.trainer.save(step)
