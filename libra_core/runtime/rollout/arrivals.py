"""Engines that have started and wait for weights by broadcast: they join the fleet with a publication whose group they are in."""

import asyncio

from libra_core.errors import DeadlineError, EngineLostError
from libra_core.runtime.rollout.fleet import EngineMember
from libra_core.types.ids import EngineId


class Arrivals:
    """Owned by the coordinator's event loop."""

    def __init__(self, join_s: float) -> None:
        self._join_s = join_s
        self._joining: dict[EngineId, asyncio.Future[None]] = {}
        """Of those that somebody waits for."""
        self.waiting: list[EngineMember] = []

    def add(self, member: EngineMember) -> None:
        if all(waiting.engine_id != member.engine_id for waiting in self.waiting):
            self.waiting.append(member)

    async def joined(self, engine_id: EngineId) -> None:
        """Wait until it has weights; one that has not within `elastic.join_s` waits no longer.

        Raises:
            EngineLostError: it took none, or was withdrawn.
            DeadlineError: there was no publication.
        """
        joining = self._joining.setdefault(engine_id, asyncio.get_running_loop().create_future())
        try:
            await asyncio.wait_for(asyncio.shield(joining), self._join_s)
        except TimeoutError:
            self.withdraw(engine_id)
            raise DeadlineError(
                f"{engine_id} waited {self._join_s:.0f} s (elastic.join_s) for the next broadcast of weights; raise it above the "
                "time of an iteration"
            ) from None

    def withdraw(self, engine_id: EngineId) -> None:
        """It waits no longer."""
        self._end(engine_id, EngineLostError(f"{engine_id} was withdrawn before it had weights"))

    def took(self, member: EngineMember) -> bool:
        """Its weights; whether it is one that waited."""
        waited = member in self.waiting
        self._end(member.engine_id, None)
        return waited

    def failed(self, member: EngineMember, error: EngineLostError) -> bool:
        """At its weights; whether somebody was told. Else it waits for another publication."""
        if member.engine_id not in self._joining:
            return False
        self._end(member.engine_id, error)
        return True

    def _end(self, engine_id: EngineId, error: EngineLostError | None) -> None:
        self.waiting = [member for member in self.waiting if member.engine_id != engine_id]
        joining = self._joining.pop(engine_id, None)
        if joining is None or joining.done():
            return
        if error is None:
            joining.set_result(None)
        else:
            joining.set_exception(error)
            joining.exception()  # nobody may be waiting any more
