"""Typed clients of a running session: the ports of `ports/pools.py` over Ray calls. One process, the flow's, holds them."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from libra_core.config import LibraConfig
from libra_core.errors import DeadlineError, LibraError, ResourceError
from libra_core.runtime.fleet import ActorHandle, first_line
from libra_core.runtime.trainer_group import TrainerGroup, prune_checkpoints
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.plan import Plan
from libra_core.types.reports import RewardReport, UpdateReport
from libra_core.types.trace import TraceSpan

_CALL_DEADLINE_S = 60.0


def ask(what: str, reference: Any, deadline_s: float = _CALL_DEADLINE_S) -> Any:
    """Wait for one actor call.

    Raises:
        DeadlineError: no answer in time.
        ResourceError: the actor is gone.
        LibraError: the actor's own, as it raised it.
    """
    try:
        return ray.get(reference, timeout=deadline_s)
    except GetTimeoutError:
        raise DeadlineError(f"the flow waited {deadline_s:.0f} s for {what} and got no answer") from None
    except RayActorError as error:
        raise ResourceError(f"{what}: the actor is gone ({first_line(error)}); look into the run folder's logs") from error
    except RayTaskError as error:
        if isinstance(error.cause, LibraError):
            raise error.cause from error
        raise


class TrainerClient:
    """`PolicyTrainer` over the ranks of the training world. Only the flow's process holds one; one call after another."""

    def __init__(self, config: LibraConfig, run_dir: Path, ranks: TrainerGroup, store: ActorHandle) -> None:
        self._config = config
        self._checkpoints = run_dir / "checkpoints"
        self._ranks = ranks
        self._store = store
        self._carried: dict[str, Callable[[], Any]] = {}
        self._open: BatchId | None = None
        self._feeds: list[list[Any]] = []
        """Calls of `accumulate` on every rank, oldest first, not yet known to be finished."""

    def open_step(self, batch_id: BatchId, expected_version: PolicyVersion) -> None:
        """Begin a streamed step; an interrupted one before it is forgotten."""
        self._feeds.clear()
        done = self._ranks.call("begin_step", batch_id, expected_version, deadline_s=self._deadline_s)[0]
        self._open = batch_id if done is None else None

    def feed(self, batch_id: BatchId, groups: tuple[int, ...]) -> None:
        """Send groups of the open step to every rank, without waiting for them to be trained."""
        if self._open == batch_id:
            sequences = self._store.sequences.remote(batch_id, groups)
            self._feeds.append(self._ranks.start("accumulate", sequences))

    def check(self) -> None:
        """Raises what a rank of the open step raised, as soon as it is known."""
        while self._feeds and self._ranks.finished(self._feeds[0]):
            self._ranks.wait("accumulate", self._feeds.pop(0), deadline_s=self._deadline_s)

    def update(self, batch_id: BatchId, expected_version: PolicyVersion) -> UpdateReport:
        """Finish the open step when it is this batch's, else train the batch as a whole."""
        if self._open == batch_id:
            for feed in self._feeds:
                self._ranks.wait("accumulate", feed, deadline_s=self._deadline_s)
            self._feeds.clear()
            self._open = None
            report: UpdateReport = self._ranks.call("finish_step", deadline_s=self._deadline_s)[0]
        else:
            batch = self._store.training_batch.remote(batch_id, expected_version)
            report = self._ranks.call("update", batch, deadline_s=self._deadline_s)[0]
        ask(f"the store to close {batch_id}", self._store.mark_trained.remote(batch_id))
        return report

    def carry(self, name: str, state: Callable[[], Any]) -> None:
        """Store what `state` returns, as JSON holds it, in every checkpoint; a resumed session finds it under the name."""
        self._carried[name] = state

    def save(self, step: int) -> str:
        """Write a checkpoint with the prompts that a resumed run must issue again."""
        folder = self._checkpoints / f"step-{step:06d}"
        cursor = ask("the store's cursor", self._store.cursor.remote())
        extra = {"cursor": asdict(cursor)} | {name: state() for name, state in self._carried.items()}
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._ranks.call("save", str(folder), extra, deadline_s=self._deadline_s)
        prune_checkpoints(self._checkpoints, self._config.training.checkpoint.keep)
        return str(folder)

    def version(self) -> int:
        return self._ranks.call("version", deadline_s=_CALL_DEADLINE_S)[0]

    def digest(self) -> str:
        """Hash of all parameters, the same for any parallel layout."""
        return self._ranks.call("digest", deadline_s=_CALL_DEADLINE_S)[0]

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
        return ask(f"rewards of {batch_id}", self._scorer.report.remote(batch_id))


class ControllerClient:
    """`ClusterController`."""

    def __init__(self, controller: ActorHandle) -> None:
        self._controller = controller

    def plan(self) -> Plan:
        return ask("the active plan", self._controller.plan.remote())
