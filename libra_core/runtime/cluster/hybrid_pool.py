"""The hybrid workers of a run: which of them train, what the core says of them, and what becomes of one that dies."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from libra_core.config import LibraConfig
from libra_core.elastic.membership import Message, Pool, Signal, State
from libra_core.errors import DeadlineError, ResourceError
from libra_core.runtime.cluster.hybrid_worker import HybridWorker
from libra_core.types.transition import Action, Verb

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A replica that was lost while it trained, and its GPUs' way back into the fleet."""

    slot: int
    lost_s: float
    """Unix time at which the core's step went on without it."""
    serving_s: float | None = None
    """Unix time of full service; None: it did not come back."""
    error: str = ""


class HybridPool:
    """Owned by the controller's event loop.

    `hybrid-N` of a transition is the N-th place; the workers that train hold the first places. `note_active` is what the core
    says after each step, and nothing else decides who takes part: `leave` waits for it, and a worker that is missing there
    without having asked was lost.
    """

    def __init__(self, config: LibraConfig, workers: list[HybridWorker]) -> None:
        self._config = config
        self._workers = {worker.slot: worker for worker in workers}
        self._places = [worker.slot for worker in workers]
        gpus = config.training.layout.tp * config.training.layout.pp
        self._members = Pool.of(replicas=len(workers), gpus_each=gpus)
        self._version = -1
        self._active: dict[int, int] = {}
        """Of the step of `_version`, as the core said last."""
        self._changed = asyncio.Condition()

    @property
    def workers(self) -> list[HybridWorker]:
        return list(self._workers.values())

    def states(self) -> dict[int, State]:
        return {member.slot: member.state for member in self._members.members}

    def worker(self, slot: int) -> HybridWorker:
        return self._workers[slot]

    async def perform(self, action: Action) -> None:
        """One action of a transition on the worker in that place."""
        worker = self._workers[self._places[int(action.target.rpartition("-")[2])]]
        steps: Mapping[Verb, Callable[[HybridWorker], Awaitable[None]]] = {
            Verb.DRAIN_ENGINE: self._drain,
            Verb.ADMIT_ENGINE: self._admit,
            Verb.STOP_ENGINE: self._stop_engine,
            Verb.START_ENGINE: lambda worker: worker.start_engine(),
            Verb.START_REPLICA: lambda worker: worker.start_replica(),
            Verb.STOP_REPLICA: lambda worker: worker.stop_replica(),
            Verb.JOIN: self._join,
            Verb.LEAVE: self._leave,
        }
        await steps[action.verb](worker)

    async def note_active(self, version: int, active: Mapping[int, int]) -> list[int]:
        """Slots and epochs that take part in the step of this version; returns the slots that were lost."""
        async with self._changed:
            self._version, self._active = version, dict(active)
            self._changed.notify_all()
        return [
            member.slot
            for member in self._members.active
            if version >= (member.active_from or 0) and self._active.get(member.slot) != self._workers[member.slot].joined
        ]

    def mark_lost(self, slot: int) -> None:
        self._signal(slot, Signal.DIED)
        self.order_places()

    def order_places(self) -> int:
        """Workers that train take the first places, then those that serve; returns the number of the first.

        After losses, and after transitions that met one.
        """
        order = (State.ACTIVE, State.SERVING)
        states = self.states()
        self._places.sort(key=lambda slot: order.index(states[slot]) if states[slot] in order else len(order))
        return len(self._members.active)

    async def recover(self, slot: int) -> None:
        """From whatever is left there to an engine that serves; raises what stopped it."""
        worker = self._workers[slot]
        worker.kill_replica()
        await worker.start_engine()
        await self._admit(worker)

    async def _drain(self, worker: HybridWorker) -> None:
        if self._members.members[worker.slot].state is State.FAILED:
            raise ResourceError(f"hybrid-{worker.slot} was lost and does not serve, so it cannot change sides")
        self._signal(worker.slot, Signal.JOIN)
        await worker.drain()

    async def _stop_engine(self, worker: HybridWorker) -> None:
        await worker.stop_engine()
        self._signal(worker.slot, Signal.DRAINED)

    async def _admit(self, worker: HybridWorker) -> None:
        if self._members.members[worker.slot].state is State.FAILED:
            worker.kill_replica()
            await worker.start_engine()
        await worker.admit()
        state = self._members.members[worker.slot].state
        if state in (State.SNAPSHOT, State.REPLAY, State.ACTIVE):
            self._signal(worker.slot, Signal.LEAVE)
        for signal in (Signal.CANCEL, Signal.SERVED, Signal.RECOVERED):  # the one that fits where it comes from
            self._signal(worker.slot, signal)

    async def _join(self, worker: HybridWorker) -> None:
        state = self._members.members[worker.slot].state
        if state is State.ACTIVE:
            return
        if state is State.LEAVING:  # what was asked of the core cannot be taken back: it joins anew
            worker.joined = None
            for signal in (Signal.SERVED, Signal.JOIN, Signal.DRAINED):
                self._signal(worker.slot, signal)
        await worker.join(self._members.members[worker.slot].epoch)
        self._signal(worker.slot, Signal.RESTORED)
        step = worker.join_report.active_from if worker.join_report is not None else None
        self._signal(worker.slot, Signal.ACTIVATED, step)

    async def _leave(self, worker: HybridWorker) -> None:
        """Waits for the end of the step in work, or cuts the connection where the core does not count on it."""
        member = self._members.members[worker.slot]
        was_active, active_from = member.state is State.ACTIVE, member.active_from or 0
        self._signal(worker.slot, Signal.LEAVE)
        epoch = worker.joined
        if epoch is not None and was_active:
            await worker.ask_to_leave()
            deadline_s = self._config.elastic.join_s
            try:
                async with asyncio.timeout(deadline_s), self._changed:
                    await self._changed.wait_for(lambda: self._version >= active_from and self._active.get(worker.slot) != epoch)
            except TimeoutError:
                raise DeadlineError(
                    f"hybrid-{worker.slot} waited {deadline_s:.0f} s (elastic.join_s) for the core to finish a step without it"
                ) from None
        await worker.cut()

    def _signal(self, slot: int, signal: Signal, step: int | None = None) -> None:
        """Signals that do not fit the member's state change nothing."""
        epoch = self._members.members[slot].epoch
        self._members = self._members.receive(Message(slot=slot, epoch=epoch, signal=signal, step=step), time.monotonic())
