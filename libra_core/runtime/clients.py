"""Typed clients of a running session: the ports of `ports/pools.py` over Ray calls. One process, the flow's, holds them."""

import time
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
    """`PolicyTrainer` over the ranks of the training world."""

    def __init__(self, config: LibraConfig, run_dir: Path, ranks: TrainerGroup, store: ActorHandle) -> None:
        self._config = config
        self._checkpoints = run_dir / "checkpoints"
        self._ranks = ranks
        self._store = store
        self._work: list[tuple[str, float, float]] = []

    def update(self, batch_id: BatchId, expected_version: PolicyVersion) -> UpdateReport:
        start_s = time.time()
        batch = self._store.training_batch.remote(batch_id, expected_version)
        deadline_s = self._config.training.update_deadline_s
        report: UpdateReport = self._ranks.call("update", batch, deadline_s=deadline_s)[0]
        ask(f"the store to close {batch_id}", self._store.mark_trained.remote(batch_id))
        self._work.append(("update", start_s, time.time()))
        return report

    def save(self, step: int) -> str:
        """Write a checkpoint with the prompts that a resumed run must issue again."""
        folder = self._checkpoints / f"step-{step:06d}"
        cursor = ask("the store's cursor", self._store.cursor.remote())
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._ranks.call("save", str(folder), {"cursor": asdict(cursor)}, deadline_s=self._config.training.update_deadline_s)
        prune_checkpoints(self._checkpoints, self._config.training.checkpoint.keep)
        return str(folder)

    def version(self) -> int:
        return self._ranks.call("version", deadline_s=_CALL_DEADLINE_S)[0]

    def digest(self) -> str:
        """Hash of all parameters, the same for any parallel layout."""
        return self._ranks.call("digest", deadline_s=_CALL_DEADLINE_S)[0]

    def export(self, folder: str) -> None:
        """The current weights as an HF folder."""
        self._ranks.call("export_hf_folder", folder, deadline_s=self._config.training.update_deadline_s)

    def record(self, name: str, start_s: float) -> None:
        """Note work that began at `start_s` and ends now."""
        self._work.append((name, start_s, time.time()))

    def score_tokens(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        return self._ranks.call("score_tokens", token_ids, deadline_s=self._config.publication.deadline_s)[0]

    def work(self, since_s: float) -> list[tuple[str, float, float]]:
        """What the trainer did: name, start and end in unix seconds."""
        return [item for item in self._work if item[2] > since_s]

    def rendezvous(self) -> tuple[str, int]:
        """Address and a free port of rank 0's host."""
        return ask("a port of trainer rank 0", self._ranks.first.rendezvous.remote(self._config.backend.ray_address == "local"))

    @property
    def ranks(self) -> TrainerGroup:
        return self._ranks


class RewardClient:
    """`RewardScorer`."""

    def __init__(self, config: LibraConfig, scorer: ActorHandle) -> None:
        self._deadline_s = config.rollout.score_deadline_s + _CALL_DEADLINE_S
        self._scorer = scorer

    def score(self, batch_id: BatchId) -> RewardReport:
        return ask(f"rewards of {batch_id}", self._scorer.score.remote(batch_id), self._deadline_s)


class ControllerClient:
    """`ClusterController`."""

    def __init__(self, controller: ActorHandle) -> None:
        self._controller = controller

    def plan(self) -> Plan:
        return ask("the active plan", self._controller.plan.remote())
