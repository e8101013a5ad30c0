"""Waiting for one actor call, with a deadline and in the project's own errors."""

import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from libra_core.errors import DeadlineError, LibraError, ResourceError
from libra_core.runtime.fleet import first_line

CALL_DEADLINE_S = 60.0
_LEAST_S = 1.0
"""What fetching an answer that is there may take."""


def answered(reference: Any, within_s: float = 0.0) -> bool:
    """Whether `ask` would not wait, from so long on."""
    return bool(ray.wait([reference], timeout=within_s)[0])


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
    except RayActorError as error:
        raise ResourceError(f"{what}: the actor is gone ({first_line(error)}); look into the run folder's logs") from error
    except RayTaskError as error:
        if isinstance(error.cause, LibraError):
            raise error.cause from error
        raise
