"""Episodes without state of their own."""

from collections.abc import Awaitable, Callable

from libra_core.types.trajectory import ToolCall, ToolReturn


class InstantEpisode:
    """Implements `ports.environment.Episode` for a tool that answers at once and changes nothing."""

    def __init__(self, answer: Callable[[ToolCall], ToolReturn]) -> None:
        self._answer = answer

    async def step(self, call: ToolCall) -> ToolReturn:
        return self._answer(call)

    async def submission(self) -> str:
        return ""

    async def close(self) -> None:
        return None


class WaitingEpisode:
    """Implements `ports.environment.Episode` for a tool that is waited for and changes nothing."""

    def __init__(self, answer: Callable[[ToolCall], Awaitable[ToolReturn]]) -> None:
        self._answer = answer

    async def step(self, call: ToolCall) -> ToolReturn:
        return await self._answer(call)

    async def submission(self) -> str:
        return ""

    async def close(self) -> None:
        return None
