"""What the tasks ask of a running session, whatever backend stands behind it. Two stand there: Ray, and the simulator."""

from collections.abc import Sequence
from typing import Protocol

from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan
from libra_core.types.reports import (
    EngineStats,
    IterationReport,
    PublicationReport,
    RewardReport,
    RolloutReport,
    TrajectoryAudit,
    TrajectoryText,
    UpdateReport,
)
from libra_core.types.trace import TraceSpan


class RolloutPool(Protocol):
    """Engines with the agent loops that run on them, and what they did: one thing, since an iteration's account of time needs
    the clock of both."""

    def take_batch(self, step: int) -> RolloutReport:
        """Wait for the groups of this step; raises `DeadlineError` naming the late ones."""
        ...

    def publish(self, version: PolicyVersion) -> PublicationReport:
        """Bring the trainer's weights of this version onto every engine."""
        ...

    def begin_publication(self, version: PolicyVersion) -> PublicationReport:
        """The trainer's part of `publish`; the report is of the newest publication that has ended, perhaps of this one."""
        ...

    def finish_publication(self) -> None:
        """Wait for what `begin_publication` began; raises what it failed with."""
        ...

    def stats(self) -> tuple[EngineStats, ...]: ...

    def evaluate_heldout(self) -> dict[str, float]:
        """Mean reward on held-out prompts, overall and per kind; empty where the workload has none."""
        ...

    def iteration_report(
        self, step: int, rollout: RolloutReport, reward: RewardReport, update: UpdateReport, publication: PublicationReport
    ) -> IterationReport:
        """Close the account of the iteration; the next one begins here."""
        ...

    def sample_trajectories(self, batch_id: BatchId, count: int) -> Sequence[TrajectoryText]: ...

    def lengths(self, batch_id: BatchId) -> Sequence[LengthRecord]: ...

    def spans(self, since_s: float) -> Sequence[TraceSpan]:
        """What began since a unix time, in every lane."""
        ...

    def audit(self) -> TrajectoryAudit:
        """What became of the trajectories of all finished steps."""
        ...


class RewardScorer(Protocol):
    """Scores and group advantages."""

    def score(self, batch_id: BatchId) -> RewardReport: ...


class PolicyTrainer(Protocol):
    """The training world."""

    def update(self, batch_id: BatchId, expected_version: PolicyVersion) -> UpdateReport:
        """One optimizer step; repeated calls for a batch that is already applied return its report again."""
        ...

    def save(self, step: int) -> str:
        """Write a checkpoint that `resume` continues exactly; returns its folder."""
        ...

    def version(self) -> int:
        """Optimizer steps that are in the weights."""
        ...


class ClusterController(Protocol):
    """Owner of the active plan."""

    def plan(self) -> Plan: ...
