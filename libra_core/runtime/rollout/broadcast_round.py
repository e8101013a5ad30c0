"""The engines of one broadcast of weights, from the forming of their group to the word whether the trainer has sent all of it."""

import asyncio
import itertools
from collections.abc import Callable, Sequence

from libra_core.errors import EngineLostError, ResourceError
from libra_core.runtime.base.rpc import GRACE_S, reply
from libra_core.runtime.rollout.fleet import EngineMember, first_line
from libra_core.types.ids import EngineId

Drop = Callable[[EngineMember, EngineLostError], None]
"""An engine that does not serve any more."""
LOOK_S = 60.0
"""An engine answers between two of its steps."""
_WHO = "the broadcast of weights"


class BroadcastRound:
    """Owned by the coordinator's event loop. An engine that dies breaks the group for all; another one is then formed."""

    def __init__(self, drop: Drop) -> None:
        self._drop = drop
        self._whole: asyncio.Future[bool] | None = None
        self.members: tuple[EngineMember, ...] = ()

    async def form(self, members: Sequence[EngineMember]) -> dict[EngineId, int]:
        """Those that answer, and their degrees in the order of their ranks; who comes later waits for another round."""
        looks = (reply(_WHO, f"a sign of life of {member.engine_id}", member.handle.ping.remote(), LOOK_S) for member in members)
        answers = await asyncio.gather(*looks, return_exceptions=True)
        self.members = tuple(self._kept(members, answers))
        self._whole = asyncio.get_running_loop().create_future()
        return {member.engine_id: member.tp for member in self.members}

    async def open(self, host: str, port: int, world_size: int, timeout_s: float) -> None:
        """Every engine joins the `world_size` processes; trainer rank 0 is rank 0.

        Raises:
            ResourceError: one is gone or hangs; the group is of no use.
        """
        offsets = itertools.accumulate((member.tp for member in self.members), initial=1)
        joins = (
            reply(
                _WHO,
                f"{member.engine_id} to join its group",
                member.handle.open_transport.remote("broadcast", host, port, offset, world_size, timeout_s),
                2 * timeout_s + GRACE_S,
            )
            for member, offset in zip(self.members, offsets, strict=False)
        )
        answers = await asyncio.gather(*joins, return_exceptions=True)
        failures = [first_line(answer) for answer in answers if isinstance(answer, BaseException)]
        if failures:
            raise ResourceError(f"{len(failures)} of {len(self.members)} engines did not join a broadcast: {failures[0]}")

    def end(self, *, whole: bool) -> None:
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(whole)

    def verdict(self) -> "asyncio.Future[bool]":
        """Of this round, also when another one is formed meanwhile: whether the trainer has sent all of it."""
        assert self._whole is not None, "a round is formed before it is judged"
        return self._whole

    def _kept(self, members: Sequence[EngineMember], answers: Sequence[object]) -> list[EngineMember]:
        kept: list[EngineMember] = []
        for member, answer in zip(members, answers, strict=True):
            if not isinstance(answer, BaseException):
                kept.append(member)
                continue
            self._drop(member, EngineLostError(f"{member.engine_id} cannot take part: {first_line(answer)}"))
        return kept
