"""Putting an iteration's facts together."""

from libra_core.types.reports import IterationReport, PublicationReport, RewardReport, RolloutReport, UpdateReport
from libra_core.types.session import SessionRef
from tasks.connection import connect


def assemble_report(
    session: SessionRef, rollout: RolloutReport, reward: RewardReport, update: UpdateReport, publication: PublicationReport
) -> IterationReport:
    """Add the times that only the session knows: how long fleet and trainer worked, and how long both did."""
    return connect(session).rollout.iteration_report(rollout.step, rollout, reward, update, publication)
