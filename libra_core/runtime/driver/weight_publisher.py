"""Weight publication from the trainer to every engine: transfer, swap, canary. Driven by the flow's process.

The trainer's part of it is the transfer and the canary's expected scores. What follows, the engines load and score the canary,
only reads weights that stay as they are until the next optimizer step: it may go on while the trainer takes the next groups.
"""

import itertools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libra_core.config import LibraConfig
from libra_core.engines.weight_source import BroadcastWeights, FileWeights, TensorMeta
from libra_core.errors import DeadlineError, ResourceError, TrainerLostError
from libra_core.runtime.base.rpc import CALL_DEADLINE_S, GRACE_S, ActorHandle, answered, ask
from libra_core.runtime.driver.clients import TrainerClient
from libra_core.runtime.rollout.weights import PING_S, PublicationOrder, Published, worst_mismatch
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import PublicationReport

logger = logging.getLogger(__name__)

_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """An order that the engines have been given."""

    reference: Any
    at_s: float
    """Monotonic."""
    path: Path | None
    """Its file; older ones are removed once it is loaded."""
    bytes: int
    transfer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    """A publication whose trainer's part is done."""

    version: PolicyVersion
    sent: _Sent
    before_s: float
    """From its start until the order was sent."""
    expected: tuple[float, ...]
    """What the trainer scored the canary; empty without one."""


class WeightPublisher:
    """Waits for all engines, each up to `publication.deadline_s`; an engine that fails is replaced, not waited for.

    One publication at a time: the next begins when the one before has been finished.
    """

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
        self._tokens = itertools.count()
        self._under_way: _UnderWay | None = None
        self._newest: PublicationReport | None = None

    def publish(self, version: PolicyVersion) -> PublicationReport:
        """Bring the trainer's weights onto every engine, and wait for all of them.

        Raises:
            NumericsError: an engine and the trainer disagree on the canary beyond the tolerance.
            ResourceError: no engine took the weights.
        """
        self.begin(version)
        return self.finish()

    def begin(self, version: PolicyVersion) -> None:
        """Finish the publication before, then do the trainer's part of this one. Raises what `finish` does."""
        # Engines read the version before from its file or out of the broadcast until they have answered; a second order beside it
        # would give some of them the one and some the other, and the canary of neither would mean anything.
        if self._under_way is not None:
            self.finish()
        start_s = time.monotonic()
        canary = self._canary_tokens()
        sent = self._by_file(version, canary) if self._config.weights_by_file else self._by_broadcast(version, canary)
        self._under_way = _UnderWay(
            version=version,
            sent=sent,
            before_s=sent.at_s - start_s,
            # After the order has gone, so that engines load meanwhile, and before the next step, which changes the weights.
            expected=self._trainer.score_tokens(canary) if canary else (),
        )

    @property
    def under_way(self) -> bool:
        """Whether engines may still be loading."""
        return self._under_way is not None

    def check(self) -> None:
        """Finish the publication under way if the engines have answered. Raises what `finish` does."""
        if self._under_way is not None and answered(self._under_way.sent.reference):
            self.finish()

    def finish(self) -> PublicationReport:
        """Wait for the publication under way; the report of the newest that has ended.

        Raises:
            NumericsError: an engine and the trainer disagree on the canary beyond the tolerance.
            ResourceError: no engine took the weights.
            DeadlineError: the engines gave no answer.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._newest = self._finished(under_way)
        assert self._newest is not None, "a publication has to begin before it is finished"
        return self._newest

    def _finished(self, under_way: _UnderWay) -> PublicationReport:
        sent, version = under_way.sent, under_way.version
        answer: Published = ask(f"the engines to load version {version}", sent.reference, self._patience_s, since_s=sent.at_s)
        self._remove_files_before(sent.path)  # not sooner: engines that load still map the one before
        if not answer.engines:
            raise ResourceError(f"no engine took policy version {version}; look into the run folder's logs")
        if under_way.expected and not answer.scores:
            raise ResourceError(f"no engine scored the canary of policy version {version}; look into the run folder's logs")
        return PublicationReport(
            policy_version=version,
            transfer_s=sent.transfer_s,
            total_s=under_way.before_s + answer.seconds,
            bytes=sent.bytes,
            engines=answer.engines,
            canary_max_error=self._mismatch(under_way, answer),
        )

    @property
    def _patience_s(self) -> float:
        """An engine that is being admitted (its weights and the canary), every load, and the canary; each has its deadline in the
        coordinator, which names whom it gives up."""
        in_turn = self._config.publication.order == "rolling" and self._config.weights_by_file
        loads = self._config.rollout.num_engines if in_turn else 1
        return (loads + 3) * self._deadline_s + GRACE_S

    def _mismatch(self, under_way: _UnderWay, answer: Published) -> float:
        if not under_way.expected:
            return math.nan
        tolerance = self._config.canary_tolerance
        return worst_mismatch(answer.scores, under_way.expected, tolerance, under_way.version)

    def _by_file(self, version: PolicyVersion, canary: tuple[int, ...]) -> _Sent:
        """One safetensors file in shared memory; the newest stays, for engines that are replaced later."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"v{version:06d}.safetensors"
        export = self._trainer.ranks.call("export_file", str(path), deadline_s=self._deadline_s)[0]
        at_s, reference = self._send(lambda: PublicationOrder(version=version, source=FileWeights(path=str(path))), canary)
        return _Sent(reference=reference, at_s=at_s, path=path, bytes=export.bytes, transfer_s=export.duration_s)

    def _remove_files_before(self, path: Path | None) -> None:
        for old in self._folder.glob("v*.safetensors") if path is not None else ():
            if old != path:
                old.unlink(missing_ok=True)

    def _by_broadcast(self, version: PolicyVersion, canary: tuple[int, ...]) -> _Sent:
        """Trainer rank 0 sends each tensor while the engines stage it.

        An engine that dies on the way breaks the group for all; the group is formed again without it, once.
        """
        try:
            return self._broadcast_once(version, canary)
        except (TrainerLostError, ResourceError, DeadlineError) as error:
            self._members = None
            logger.warning("the broadcast of version %d is repeated: %s", version, error)
            return self._broadcast_once(version, canary)

    def _broadcast_once(self, version: PolicyVersion, canary: tuple[int, ...]) -> _Sent:
        # Ordered and not awaited: rank 0 and the engines are in one collective, and either side that waited for the other to be
        # done first would wait for ever.
        at_s, reference = self._send(lambda: PublicationOrder(version=version, source=self._join_group()), canary)
        whole = False
        try:
            report = self._trainer.ranks.call("broadcast_weights", deadline_s=self._deadline_s)[0]
            whole = True
        finally:
            ask("the end of a broadcast", self._coordinator.end_broadcast.remote(whole=whole))
        return _Sent(reference=reference, at_s=at_s, path=None, bytes=report.bytes, transfer_s=report.duration_s)

    def _join_group(self) -> BroadcastWeights:
        """Form the group of trainer rank 0 and all engine workers, again whenever an engine was replaced."""
        group: dict[EngineId, int] = ask(
            "the engines of a broadcast", self._coordinator.form_broadcast.remote(), PING_S + GRACE_S
        )
        if self._layout is None:
            tensors = self._trainer.ranks.call("export_metadata", deadline_s=self._deadline_s)[0]
            self._layout = BroadcastWeights(
                tensors=tuple(TensorMeta(name=name, dtype=dtype, shape=tuple(shape)) for name, dtype, shape in tensors)
            )
        if tuple(group) != self._members:
            host, port = self._trainer.rendezvous()
            world_size = 1 + sum(group.values())
            join_s = self._deadline_s / 2
            # Both sides are asked before either is waited for: the group exists once all of its ranks are in the call.
            joining = self._coordinator.open_broadcast.remote(host, port, world_size, join_s)
            self._trainer.ranks.call("open_broadcast", host, port, world_size, join_s, deadline_s=self._deadline_s)
            ask("the engines to join the broadcast group", joining, 2 * join_s + 2 * GRACE_S)
            self._members = tuple(group)
        return self._layout

    def _send(self, order: Callable[[], PublicationOrder], canary: tuple[int, ...]) -> tuple[float, Any]:
        """Waits for an engine while the fleet changes and none serves, which the coordinator bounds; none leaves from then on
        until the order has been carried out."""
        token = next(self._tokens)
        try:
            while not self._begun(token):
                continue
            prepared = order()
        except BaseException:  # also an interrupt: a publication left open keeps every engine in the fleet until the run ends
            ask("the end of a publication", self._coordinator.end_publication.remote(token))
            raise
        return time.monotonic(), self._coordinator.publish.remote(prepared, canary, token)

    def _begun(self, token: int) -> bool:
        beginning = self._coordinator.begin_publication.remote(token, _WAIT_S)
        return ask("an engine to publish to", beginning, _WAIT_S + CALL_DEADLINE_S)

    def _canary_tokens(self) -> tuple[int, ...]:
        """Empty when it is switched off."""
        if self._canary is None:
            wanted = self._config.publication.canary
            self._canary = tuple(ask("the canary prompt", self._coordinator.canary_tokens.remote())) if wanted else ()
        return self._canary
