"""One call to many engines, each with a deadline: an engine that gives no answer is given up, and named."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from libra_core.errors import DeadlineError, EngineLostError, ResourceError
from libra_core.runtime.base.rpc import reply
from libra_core.runtime.rollout.fleet import ActorHandle, EngineMember
from libra_core.types.ids import EngineId

Call = Callable[[ActorHandle], Awaitable[Any]]
GONE = (DeadlineError, ResourceError, EngineLostError)
"""What a call to an engine raises that hangs, died or is out of service."""
_WHO = "the rollout coordinator"


class EngineCalls:
    """Owned by the coordinator's event loop. `lose` is told each engine that is given up, and why."""

    def __init__(self, lose: Callable[[EngineId, str], None]) -> None:
        self._lose = lose

    async def each(self, members: Sequence[EngineMember], what: str, call: Call, deadline_s: float) -> dict[EngineId, Any]:
        """Answers of those that gave one; all are asked at once. Raises what an engine raised that goes on."""
        answers = await asyncio.gather(*(self._one(member, what, call, deadline_s) for member in members), return_exceptions=True)
        given: dict[EngineId, Any] = {}
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, GONE):
                self._lose(member.engine_id, f"{member.engine_id} could not {what}: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                given[member.engine_id] = answer
        return given

    async def first(self, members: Sequence[EngineMember], what: str, call: Call, deadline_s: float) -> Any:
        """The answer of the first that gives one; None when none does."""
        for member in members:
            given = await self.each([member], what, call, deadline_s)
            if given:
                return given[member.engine_id]
        return None

    async def _one(self, member: EngineMember, what: str, call: Call, deadline_s: float) -> Any:
        return await reply(_WHO, f"{member.engine_id} to {what}", call(member.handle), deadline_s)
