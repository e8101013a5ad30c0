"""Actors without Ray: their methods answer, hang, die or raise, as a test asks."""

import asyncio
import inspect
from typing import Any

from ray.exceptions import ActorDiedError, RayTaskError

from support.core_engines import Remote

HANGS, DIES = "hangs", "dies"


class FakeActor:
    """A method answers with what was given under its name, called with the arguments where it can be; `ill` comes first."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.ill: dict[str, str | Exception] = {}
        """By method: `HANGS`, `DIES`, or what it raises."""
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Remote:
        async def method(*args: Any, **named: Any) -> Any:
            self.calls.append((name, args))
            await suffer(self.ill.get(name, ""))
            answer = self.answers.get(name)
            answer = answer(*args, **named) if callable(answer) else answer
            return await answer if inspect.isawaitable(answer) else answer

        return Remote(method)

    def asked(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of each call so far."""
        return [args for called, args in self.calls if called == name]


async def suffer(illness: str | Exception) -> None:
    if illness == HANGS:
        await asyncio.Event().wait()
    if illness == DIES:
        raise ActorDiedError
    if isinstance(illness, Exception):
        raise raised_remotely(illness)


def raised_remotely(error: Exception) -> Exception:
    """What awaiting a call raises whose method raised this."""
    return RayTaskError("method", f"Traceback\n{type(error).__name__}: {error}", error).as_instanceof_cause()
