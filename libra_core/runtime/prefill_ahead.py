"""A move that overlaps a tool call: the engine that will probably serve the next turn computes the context meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from libra_core.errors import EngineLostError
from libra_core.ports.routing import FinishedTrajectory, TurnContext
from libra_core.runtime.fleet import EngineMember
from libra_core.types.trajectory import GeneratedTurn, GenerationRequest

Generate = Callable[[EngineMember, GenerationRequest], Awaitable[GeneratedTurn]]


class MoveWatch(Protocol):
    """Who counts what moves cost and where trajectories end."""

    def note_reprefill(self, seconds: float) -> None: ...

    def note_ahead(self, seconds: float) -> None: ...

    def note_end(self, finished: FinishedTrajectory, tp: int, context_tokens: int) -> None: ...


class PrefillAhead:
    """One request for a single token, whose only use is the prefix cache that it leaves behind.

    Consumes: one engine request. Waits for: its answer, within the turn deadline. Whoever starts it either takes or drops it.
    """

    def __init__(self, member: EngineMember, request: GenerationRequest, generate: Generate, watch: MoveWatch) -> None:
        self.member = member
        self._task = asyncio.get_running_loop().create_task(self._compute(request, generate, watch))

    async def take(self) -> GeneratedTurn | None:
        """The trajectory does move there; None when the engine was lost meanwhile."""
        return await self._task

    def drop(self) -> None:
        """It goes elsewhere, or has ended."""
        self._task.cancel()

    async def _compute(self, request: GenerationRequest, generate: Generate, watch: MoveWatch) -> GeneratedTurn | None:
        started_s = time.monotonic()
        try:
            turn = await generate(self.member, request)
        except EngineLostError:
            return None
        watch.note_ahead(time.monotonic() - started_s)
        return turn


def stay(_turn: TurnContext) -> None:
    """Foresees no move."""
