"""What the tasks ask of a running session, whatever backend stands behind it."""

from typing import Protocol

from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.plan import Plan
from libra_core.types.reports import EngineStats, PublicationReport, RewardReport, RolloutReport, UpdateReport


class RolloutPool(Protocol):
    """Engines with the agent loops that run on them."""

    def take_batch(self, step: int) -> RolloutReport:
        """Wait for the groups of this step; raises `DeadlineError` naming the late ones."""
        ...

    def publish(self, version: PolicyVersion) -> PublicationReport:
        """Bring the trainer's weights of this version onto every engine."""
        ...

    def begin_publication(self, version: PolicyVersion) -> PublicationReport:
        """The trainer's part of `publish`; the report is of the newest publication that has ended, perhaps of this one."""
        ...

    def settle_publication(self) -> None:
        """Wait for what `begin_publication` began; raises what it failed with."""
        ...

    def stats(self) -> tuple[EngineStats, ...]: ...


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


class ClusterController(Protocol):
    """Owner of the active plan."""

    def plan(self) -> Plan: ...
