"""Weight publication from the trainer to every engine: transfer, swap, canary. Driven by the flow's process."""

import logging
import math
import time
from pathlib import Path
from typing import Any

from libra_core.config import LibraConfig
from libra_core.engines.weight_source import BroadcastWeights, FileWeights, TensorMeta
from libra_core.errors import ResourceError, TrainerLostError
from libra_core.runtime.asking import ask
from libra_core.runtime.clients import TrainerClient
from libra_core.runtime.fleet import ActorHandle
from libra_core.runtime.weights import PublicationOrder, worst_mismatch
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication, PublicationReport

logger = logging.getLogger(__name__)

_ANSWER_S = 30.0
"""On top of the engines' own deadline, so that their sentence is the one that is read."""


class WeightPublisher:
    """Waits for all engines, each up to `publication.deadline_s`; an engine that fails is replaced, not waited for."""

    def __init__(self, config: LibraConfig, trainer: TrainerClient, coordinator: ActorHandle, shared_memory: Path) -> None:
        self._config = config
        self._deadline_s = config.publication.deadline_s
        self._trainer = trainer
        self._coordinator = coordinator
        self._folder = shared_memory
        self._canary: tuple[int, ...] | None = None
        self._members: tuple[EngineId, ...] | None = None
        """Engines in the broadcast group."""
        self._layout: BroadcastWeights | None = None

    def publish(self, version: PolicyVersion) -> PublicationReport:
        """Bring the trainer's weights onto every engine.

        Raises:
            NumericsError: an engine and the trainer disagree on the canary beyond the tolerance.
            ResourceError: no engine took the weights.
        """
        start_s = time.monotonic()
        size, transfer_s, engines = self._by_file(version) if self._config.weights_by_file else self._by_broadcast(version)
        if not engines:
            raise ResourceError(f"no engine took policy version {version}; look into the run folder's logs")
        error = self._canary_error(version) if self._config.publication.canary else math.nan
        return PublicationReport(
            policy_version=version,
            transfer_s=transfer_s,
            total_s=time.monotonic() - start_s,
            bytes=size,
            engines=tuple(engines),
            canary_max_error=error,
        )

    def _by_file(self, version: PolicyVersion) -> tuple[int, float, list[EnginePublication]]:
        """One safetensors file in shared memory; the newest stays, for engines that are replaced later."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"v{version:06d}.safetensors"
        export = self._trainer.ranks.call("export_file", str(path), deadline_s=self._deadline_s)[0]
        engines = self._answer(self._send(PublicationOrder(version=version, source=FileWeights(path=str(path)))), version)
        for old in self._folder.glob("v*.safetensors"):
            if old != path:
                old.unlink(missing_ok=True)
        return export.bytes, export.duration_s, engines

    def _by_broadcast(self, version: PolicyVersion) -> tuple[int, float, list[EnginePublication]]:
        """Trainer rank 0 sends each tensor while the engines stage it.

        An engine that dies on the way breaks the group for all; the group is formed again without it, once.
        """
        try:
            return self._broadcast_once(version)
        except TrainerLostError as error:
            self._members = None
            logger.warning("the broadcast of version %d is repeated: %s", version, error)
            return self._broadcast_once(version)

    def _broadcast_once(self, version: PolicyVersion) -> tuple[int, float, list[EnginePublication]]:
        layout = self._join_group()
        sending = self._send(PublicationOrder(version=version, source=layout))
        report = self._trainer.ranks.call("broadcast_weights", deadline_s=self._deadline_s)[0]
        return report.bytes, report.duration_s, self._answer(sending, version)

    def _join_group(self) -> BroadcastWeights:
        """Form the group of trainer rank 0 and all engine workers, again whenever an engine was replaced."""
        group: dict[EngineId, int] = ask("the engines of a broadcast", self._coordinator.form_broadcast.remote())
        if self._layout is None:
            tensors = self._trainer.ranks.call("export_metadata", deadline_s=self._deadline_s)[0]
            self._layout = BroadcastWeights(
                tensors=tuple(TensorMeta(name=name, dtype=dtype, shape=tuple(shape)) for name, dtype, shape in tensors)
            )
        if tuple(group) != self._members:
            host, port = self._trainer.rendezvous()
            world_size = 1 + sum(group.values())
            joining = self._coordinator.open_broadcast.remote(host, port, world_size)
            self._trainer.ranks.call("open_broadcast", host, port, world_size, deadline_s=self._deadline_s)
            ask("the engines to join the broadcast group", joining, self._deadline_s)
            self._members = tuple(group)
        return self._layout

    def _send(self, order: PublicationOrder) -> Any:
        return self._coordinator.publish.remote(order)

    def _answer(self, sending: Any, version: PolicyVersion) -> list[EnginePublication]:
        return ask(f"the engines to load version {version}", sending, self._deadline_s + _ANSWER_S)

    def _canary_error(self, version: PolicyVersion) -> float:
        if self._canary is None:
            self._canary = tuple(ask("the canary prompt", self._coordinator.canary_tokens.remote()))
        scoring = self._coordinator.canary.remote(self._canary)
        expected = self._trainer.score_tokens(self._canary)
        scores = ask("canary scores", scoring, self._deadline_s)
        return worst_mismatch(scores, expected, self._config.publication.canary_tolerance, version)
