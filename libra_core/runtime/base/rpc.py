"""Waiting for one actor call, with a deadline that names both sides, in the project's own errors.

`tests/checks/waits.py` refuses waits in this room that go past `ask` and `reply` without a bound of their own.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from libra_core.errors import DeadlineError, LibraError, ResourceError

ActorHandle = Any
"""A Ray actor handle; its methods are reached by `handle.name.remote(...)`, which no type can describe."""

CALL_DEADLINE_S = 60.0
GRACE_S = 30.0
"""On top of a deadline that the other side keeps itself, so that its sentence is the one that is read."""
_LEAST_S = 1.0
"""What fetching an answer that is there may take."""


def answered(reference: Any, within_s: float = 0.0) -> bool:
    """Whether `ask` would not wait, from so long on."""
    return bool(ray.wait([reference], timeout=within_s)[0])


def answered_any(references: list[Any], within_s: float) -> bool:
    """Whether one of them has been answered, or is within so many seconds."""
    return bool(ray.wait(references, num_returns=1, timeout=within_s)[0])


def ask(what: str, reference: Any, deadline_s: float = CALL_DEADLINE_S, *, since_s: float | None = None) -> Any:
    """Wait for one actor call, up to `deadline_s` from now or from `since_s`, a monotonic time.

    Raises:
        DeadlineError: no answer in time.
        ResourceError: the actor is gone.
        LibraError: the actor's own, as it raised it.
    """
    left_s = deadline_s if since_s is None else max(deadline_s - (time.monotonic() - since_s), _LEAST_S)
    try:
        return ray.get(reference, timeout=left_s)
    except GetTimeoutError:
        raise DeadlineError(f"the flow waited {deadline_s:.0f} s for {what} and got no answer") from None
    except RayError as error:
        raise _in_words(what, error) from _beneath(error)


async def reply(who: str, what: str, reference: Awaitable[Any], deadline_s: float) -> Any:
    """`ask` inside an event loop, where `who` waits.

    Raises:
        DeadlineError: no answer in time.
        ResourceError: the actor is gone.
        LibraError: the actor's own, as it raised it.
    """
    try:
        async with asyncio.timeout(deadline_s):  # `wait_for` of Python 3.11 may lose a cancellation that comes with the answer
            return await reference
    except RayError as error:
        raise _in_words(f"{who} waited for {what}", error) from _beneath(error)
    except TimeoutError:
        raise DeadlineError(f"{who} waited {deadline_s:.0f} s for {what} and got no answer") from None


def _in_words(what: str, error: RayError) -> Exception:
    """What a failed call means to whoever waited for it; a mistake in the actor's own code stays as it is."""
    if isinstance(error, RayTaskError):
        return error.cause if isinstance(error.cause, LibraError) else error
    gone = "the actor is gone" if isinstance(error, RayActorError) else "Ray lost the call"
    return ResourceError(f"{what}: {gone} ({first_line(error)}); look into the run folder's logs")


def _beneath(error: RayError) -> BaseException | None:
    """None is the cause of an error that is raised as it is."""
    is_own = isinstance(error, RayTaskError) and not isinstance(error.cause, LibraError)
    return error.__cause__ if is_own else error


def first_line(error: BaseException) -> str:
    """The message without Ray's traceback; of what a remote method raised rather than of Ray's wrapper."""
    if isinstance(error, RayTaskError) and error.cause is not None:
        return f"{type(error.cause).__name__}: {first_line(error.cause)}"
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
