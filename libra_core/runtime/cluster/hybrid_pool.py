"""The hybrid workers of a run: which of them train, what the core says of them, and what becomes of one that dies."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from libra_core.config import LibraConfig
from libra_core.elastic.membership import Member, MemberState, Signal
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
        self._members = {worker.slot: Member() for worker in workers}
        self._version = -1
        self._active: dict[int, int] = {}
        """Of the step of `_version`, as the core said last."""
        self._changed = asyncio.Condition()

    @property
    def workers(self) -> list[HybridWorker]:
        return list(self._workers.values())

    def states(self) -> dict[int, MemberState]:
        return {slot: member.state for slot, member in self._members.items()}

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

    async def note_active(self, version: int, active: Mapping[int, int]) -> dict[int, int]:
        """Slots and epochs that take part in the step of this version; returns those that were lost.

        A replica that has died is missing under the epoch that it joined with.
        """
        async with self._changed:
            self._version, self._active = version, dict(active)
            self._changed.notify_all()
        return {
            slot: member.epoch
            for slot, member in self._members.items()
            if member.state is MemberState.ACTIVE
            and version >= (member.active_from or 0)
            and self._active.get(slot) != member.epoch
        }

    def mark_lost(self, slot: int, epoch: int) -> None:
        """One that has joined anew since is another member. Places are not ordered here: a transition goes on by those it has."""
        self._signal(slot, Signal.DIED, epoch)

    def order_places(self) -> int:
        """Workers that train take the first places, then those that serve; returns the number of the first.

        After losses, and after transitions that met one.
        """
        order = (MemberState.ACTIVE, MemberState.SERVING)
        states = self.states()
        self._places.sort(key=lambda slot: order.index(states[slot]) if states[slot] in order else len(order))
        return sum(state is MemberState.ACTIVE for state in states.values())

    async def recover(self, slot: int) -> None:
        """From whatever is left there to an engine that serves; raises what stopped it."""
        worker = self._workers[slot]
        worker.kill_replica()
        await worker.start_engine()
        await self._admit(worker)

    async def _drain(self, worker: HybridWorker) -> None:
        member = self._members[worker.slot]
        if member.state is MemberState.FAILED:
            raise ResourceError(f"hybrid-{worker.slot} was lost and does not serve, so it cannot change sides")
        self._signal(worker.slot, Signal.JOIN, member.epoch)
        await worker.drain()

    async def _stop_engine(self, worker: HybridWorker) -> None:
        epoch = self._members[worker.slot].epoch
        await worker.stop_engine()
        self._signal(worker.slot, Signal.DRAINED, epoch)

    async def _admit(self, worker: HybridWorker) -> None:
        member = self._members[worker.slot]
        if member.state is MemberState.SERVING:
            return
        if member.state is MemberState.FAILED:
            worker.kill_replica()
            await worker.start_engine()
        # It serves first and is noted then: noted as serving, a worker whose engines were refused would be drained of nothing.
        await worker.admit()
        self._signal(worker.slot, Signal.SERVES, member.epoch)

    async def _join(self, worker: HybridWorker) -> None:
        """The worker's report belongs to the epoch that it joined under: one that was given up meanwhile is stale."""
        member = self._members[worker.slot]
        if member.state is MemberState.ACTIVE:
            return
        if member.state is MemberState.LEAVING:
            self._signal(worker.slot, Signal.REJOIN, member.epoch)
        epoch = self._members[worker.slot].epoch
        report = await worker.join(epoch)
        self._signal(worker.slot, Signal.ACTIVATED, epoch, report.active_from)

    async def _leave(self, worker: HybridWorker) -> None:
        """Waits for the end of the step in work, or cuts the connection where the core does not count on it."""
        member = self._members[worker.slot]
        epoch, active_from = member.epoch, member.active_from or 0
        self._signal(worker.slot, Signal.LEAVE, epoch)
        if member.state is MemberState.ACTIVE:
            await worker.ask_to_leave()
            deadline_s = self._config.elastic.join_s
            try:
                # By what the core says, not by what the worker was told: its gradient may be in the step in work, and cut before
                # that step has ended, the core would wait for it up to its deadline.
                async with asyncio.timeout(deadline_s), self._changed:
                    await self._changed.wait_for(lambda: self._version >= active_from and self._active.get(worker.slot) != epoch)
            except TimeoutError:
                raise DeadlineError(
                    f"hybrid-{worker.slot} waited {deadline_s:.0f} s (elastic.join_s) for the core to finish a step without it"
                ) from None
        await worker.cut()

    def _signal(self, slot: int, signal: Signal, epoch: int, step: int | None = None) -> None:
        """`epoch`: the member's when the action began that sends it."""
        self._members[slot] = self._members[slot].after(signal, epoch, step)
