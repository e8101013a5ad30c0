"""Typed clients of a running session: the ports of `ports/pools.py` over Ray calls. One process, the flow's, holds them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray

from libra_core.config import LibraConfig
from libra_core.engines.checkpoint_files import FOLDER as CHECKPOINTS
from libra_core.engines.checkpoint_files import prune_checkpoints
from libra_core.errors import ConfigError
from libra_core.planning.experience import Experience
from libra_core.planning.run_forecast import ForecastHistory
from libra_core.runtime.base.rpc import CALL_DEADLINE_S, GRACE_S, ActorHandle, ask
from libra_core.runtime.cluster.hybrid_pool import Recovery
from libra_core.runtime.cluster.transitions import TransitionOutcome
from libra_core.runtime.driver.trainer_group import HybridFeed, TrainerGroup
from libra_core.runtime.rollout.admission import PromptCursor
from libra_core.runtime.rollout.store import Receipt
from libra_core.types.batch import StepContributions
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.plan import Plan
from libra_core.types.reports import RewardReport, UpdateReport
from libra_core.types.trace import TraceSpan
from libra_core.types.transition import Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """What a checkpoint holds of a run besides policy and optimizer; a resumed session goes on from it."""

    cursor: PromptCursor
    forecast: ForecastHistory | None = None
    """None where nothing is forecast."""
    experience: Experience | None = None
    """None where nothing can move."""

    def to_json(self) -> dict[str, object]:
        parts: dict[str, object] = {"cursor": asdict(self.cursor)}
        parts |= {"forecast": self.forecast.to_json()} if self.forecast else {}
        return parts | ({"replanning": self.experience.to_json()} if self.experience else {})

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "RunProgress":
        """Parts that an older checkpoint lacks are None. Raises `CheckpointError` for a part that is damaged."""
        cursor, forecast, experience = saved["cursor"], saved.get("forecast"), saved.get("replanning")
        return cls(
            cursor=PromptCursor(next_index=cursor["next_index"], untrained=tuple(cursor["untrained"])),
            forecast=None if forecast is None else ForecastHistory.from_json(forecast),
            experience=None if experience is None else Experience.from_json(experience),
        )


class TrainerClient:
    """`PolicyTrainer` over the ranks of the training world. Only the flow's process holds one; one call after another."""

    def __init__(
        self, config: LibraConfig, run_dir: Path, ranks: TrainerGroup, store: ActorHandle, hybrids: HybridFeed | None = None
    ) -> None:
        self._config = config
        self._checkpoints = run_dir / CHECKPOINTS
        self._ranks = ranks
        self._store = store
        self.progress: Callable[[PromptCursor], RunProgress] = lambda cursor: RunProgress(cursor=cursor)
        """What every checkpoint holds of the run, given the prompts that a resumed one must issue again."""
        self._open: BatchId | None = None
        self._feeds: list[list[Any]] = []
        """Calls of `accumulate` on every rank, oldest first, not yet known to be finished."""
        self._parts: list[tuple[int, ...]] = []
        self._hybrids = hybrids

    def open_step(self, batch_id: BatchId, expected_version: PolicyVersion) -> None:
        """Begin a streamed step; an interrupted one before it is forgotten."""
        self._feeds.clear()
        self._parts.clear()
        done = self._ranks.call("begin_step", batch_id, expected_version, deadline_s=self._deadline_s)[0]
        self._open = batch_id if done is None else None
        if self._hybrids is not None and done is None:
            self._hybrids.begin(
                batch_id, int(expected_version), self._ranks.call("active_replicas", deadline_s=self._deadline_s)[0]
            )

    def feed(self, batch_id: BatchId, groups: tuple[int, ...]) -> None:
        """Send groups of the open step to every rank, without waiting for them to be trained."""
        if self._open == batch_id:
            sequences = self._store.sequences.remote(batch_id, groups)
            self._feeds.append(self._ranks.start("accumulate", sequences))
            self._parts.append(groups)
            if self._hybrids is not None:
                self._hybrids.feed(sequences)

    def check(self) -> None:
        """Raises what a rank of the open step raised, as soon as it is known."""
        while self._feeds and self._ranks.finished(self._feeds[0]):
            self._ranks.wait("accumulate", self._feeds.pop(0), deadline_s=self._deadline_s)

    def update(self, batch_id: BatchId, expected_version: PolicyVersion) -> UpdateReport:
        """Finish the open step when it is this batch's, else train the batch as a whole."""
        if self._open != batch_id:
            self.open_step(batch_id, expected_version)
            groups = ask(f"the groups of {batch_id}", self._store.group_indices.remote(batch_id))
            self.feed(batch_id, groups)
        if self._open is None:  # the trainer had applied it already
            report: UpdateReport = self._ranks.call("begin_step", batch_id, expected_version, deadline_s=self._deadline_s)[0]
            receipt = None
        else:
            report, receipt = self._finish(batch_id)
        self._open = None
        ask(f"the store to close {batch_id}", self._store.mark_trained.remote(batch_id, receipt))
        return report

    def _finish(self, batch_id: BatchId) -> tuple[UpdateReport, Receipt]:
        """Hybrid replicas contribute first; what is lost with one the core trains before the step ends."""
        for feed in self._feeds:
            self._ranks.wait("accumulate", feed, deadline_s=self._deadline_s)
        self._feeds.clear()
        parts, again = tuple(self._parts), ()
        if self._hybrids is not None:
            self._hybrids.finish(self._deadline_s)
            again: tuple[int, ...] = self._ranks.call("resolve_step", deadline_s=self._deadline_s)[0]
            if again:
                sequences = self._store.numbered.remote(batch_id, parts, again)
                self._ranks.call("accumulate", sequences, deadline_s=self._deadline_s)
        report: UpdateReport = self._ranks.call("finish_step", deadline_s=self._deadline_s)[0]
        contributions: StepContributions = self._ranks.call("contributions", deadline_s=self._deadline_s)[0]
        if self._hybrids is not None:
            self._hybrids.end(int(report.policy_version), self._active())
            report = replace(
                report,
                hybrid_replicas=len(contributions.counted),
                hybrid_tokens=contributions.hybrid_tokens,
                lost_sequences=len(again),
                hybrid_wait_s=contributions.waited_s,
                hybrid_stall_s=contributions.stall_s,
            )
        return report, Receipt(parts=parts, again=again, trained=contributions.trained)

    def _active(self) -> dict[int, int]:
        """Hybrid replicas of the step that is open or comes next, slot to epoch."""
        return self._ranks.call("active_replicas", deadline_s=self._deadline_s)[0]

    def save(self, step: int) -> str:
        folder = self._checkpoints / f"step-{step:06d}"
        cursor: PromptCursor = ask("the store's cursor", self._store.cursor.remote())
        extra = self.progress(cursor).to_json()
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._ranks.call("save", str(folder), extra, deadline_s=self._deadline_s)
        prune_checkpoints(self._checkpoints, self._config.training.checkpoint.keep)
        return str(folder)

    def version(self) -> int:
        return self._ranks.call("version", deadline_s=CALL_DEADLINE_S)[0]

    def digest(self) -> str:
        """Hash of all parameters, the same for any parallel layout."""
        return self._ranks.call("digest", deadline_s=CALL_DEADLINE_S)[0]

    def score_tokens(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        return self._ranks.call("score_tokens", token_ids, deadline_s=self._config.publication.deadline_s)[0]

    def spans(self, since_s: float) -> list[TraceSpan]:
        """What rank 0 worked at."""
        return ask("the trainer's spans", self._ranks.first.spans.remote(since_s), self._deadline_s)

    def rendezvous(self) -> tuple[str, int]:
        """Address and a free port of rank 0's host."""
        return ask("a port of trainer rank 0", self._ranks.first.rendezvous.remote(self._config.backend.ray_address == "local"))

    @property
    def ranks(self) -> TrainerGroup:
        return self._ranks

    @property
    def _deadline_s(self) -> float:
        return self._config.training.update_deadline_s


class RewardClient:
    """`RewardScorer`: groups are scored as they finish, so this only sums a batch up."""

    def __init__(self, scorer: ActorHandle) -> None:
        self._scorer = scorer

    def score(self, batch_id: BatchId) -> RewardReport:
        return ask(f"rewards of {batch_id}", self._scorer.report.remote(batch_id), CALL_DEADLINE_S + GRACE_S)


class ControllerClient:
    """`ClusterController`."""

    def __init__(self, controller: ActorHandle) -> None:
        self._controller = controller
        self._moving: Any = None
        self._outcome: TransitionOutcome | None = None

    def plan(self) -> Plan:
        return ask("the active plan", self._controller.plan.remote())

    def begin(self, transition: Transition) -> None:
        """Start carrying it out, in the background: steps go on meanwhile. `outcome` tells when it is done.

        Raises:
            ConfigError: another one is under way.
        """
        if self._moving is not None and self.outcome() is None:
            raise ConfigError("a transition is under way; wait for its outcome")
        self._outcome = None
        self._moving = self._controller.carry_out.remote(transition)

    def outcome(self) -> TransitionOutcome | None:
        """Of the transition that was begun last; None while it is under way."""
        if self._outcome is None and self._moving is not None and ray.wait([self._moving], timeout=0)[0]:
            self._outcome = ask("the transition", self._moving)
        return self._outcome

    def recoveries(self) -> list[Recovery]:
        """Of hybrid replicas that were lost while they trained."""
        return ask("recoveries", self._controller.recoveries.remote())
