"""A session without actors: the ports answer at once, so that flows and tasks run without Ray, vLLM or Megatron."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from libra_core.config import LibraConfig
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
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
from libra_core.types.session import SessionRef
from libra_core.types.trace import TraceSpan
from support.reports import iteration_report, publication_report, reward_report, rollout_report, update_report
from tasks.connection import PlanManager


@dataclass(kw_only=True)
class FakeBackend:
    """Remembers what it was asked; `fail_at` raises `failure` when that step's batch is taken."""

    fail_at: int | None = None
    failure: BaseException = field(default_factory=lambda: RuntimeError("the fleet is gone"))
    open_failure: Exception | None = None
    start_version: int = 0
    opened: int = 0
    closed: int = 0
    taken: list[int] = field(default_factory=list)
    updates: list[str] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    resolved: list[int] = field(default_factory=list)
    """Checkpoints there were each time a publication was settled."""
    planner: PlanManager | None = None

    def open_session(self, config: LibraConfig, run_dir: Path, report: Callable[[str, float], None]) -> SessionRef:
        if self.open_failure is not None:
            raise self.open_failure
        self.opened += 1
        report("starting", 1.0)
        return SessionRef(run_id=f"{run_dir.name}-fake", run_dir=str(run_dir), ray_address="none", namespace="fake")

    def connect(self, session: SessionRef) -> "FakeConnection":
        return FakeConnection(backend=self)

    def close_session(self, session: SessionRef) -> None:
        self.closed += 1


@dataclass(kw_only=True)
class FakeConnection:
    """All four clients in one object."""

    backend: FakeBackend

    @property
    def rollout(self) -> "FakeConnection":
        return self

    reward = trainer = controller = rollout

    def take_batch(self, step: int) -> RolloutReport:
        if step == self.backend.fail_at:
            raise self.backend.failure
        self.backend.taken.append(step)
        return rollout_report(step)

    def score(self, batch_id: BatchId) -> RewardReport:
        step = int(batch_id.rpartition("-")[2])
        return reward_report(step, mean=min(1.0, 0.1 * step))

    def update(self, batch_id: BatchId, expected_version: PolicyVersion) -> UpdateReport:
        self.backend.updates.append(batch_id)
        return update_report(int(expected_version))

    def publish(self, version: PolicyVersion) -> PublicationReport:
        self.backend.published.append(int(version))
        return publication_report(int(version))

    begin_publication = publish

    def finish_publication(self) -> None:
        self.backend.resolved.append(len(self.backend.checkpoints))

    def iteration_report(
        self, step: int, rollout: RolloutReport, reward: RewardReport, update: UpdateReport, publication: PublicationReport
    ) -> IterationReport:
        return iteration_report(step, rollout=rollout, reward=reward, update=update, publication=publication)

    def save(self, step: int) -> str:
        self.backend.checkpoints.append(step)
        return f"checkpoint-{step}"

    def version(self) -> int:
        return self.backend.start_version

    def plan(self) -> Plan:
        return Plan(train=TrainLayout(), rollout=RolloutLayout(engines=((1, 1),)))

    def stats(self) -> tuple[EngineStats, ...]:
        return ()

    def sample_trajectories(self, batch_id: BatchId, count: int) -> list[TrajectoryText]:
        return [
            TrajectoryText(
                trajectory=f"{batch_id}.{number}",
                kind="question",
                reward=1.0,
                advantage=0.5,
                turns=1,
                generated_tokens=3,
                engines="engine-0",
                text="<answer>",
                answers="4",
            )
            for number in range(count)
        ]

    def lengths(self, batch_id: BatchId) -> list[LengthRecord]:
        return [LengthRecord(prompt_tokens=7, generated_tokens=(5, 3), tool_tokens=(2,), tool_s=(0.1,), step=int(batch_id[5:]))]

    def spans(self, since_s: float) -> list[TraceSpan]:
        now_s = time.time()
        return [TraceSpan(name="update", lane="trainer", start_s=now_s, end_s=now_s + 1e-5)]

    def audit(self) -> TrajectoryAudit:
        return TrajectoryAudit(taken=8 * len(self.backend.taken), trained=8 * len(self.backend.taken))

    @property
    def planner(self) -> PlanManager | None:
        return self.backend.planner

    def evaluate_heldout(self) -> dict[str, float]:
        return {"reward_mean": 0.5}
