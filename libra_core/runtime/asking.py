"""Waiting for one actor call, with a deadline and in the project's own errors."""

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from libra_core.errors import DeadlineError, LibraError, ResourceError
from libra_core.runtime.fleet import first_line

CALL_DEADLINE_S = 60.0


def ask(what: str, reference: Any, deadline_s: float = CALL_DEADLINE_S) -> Any:
    """Wait for one actor call.

    Raises:
        DeadlineError: no answer in time.
        ResourceError: the actor is gone.
        LibraError: the actor's own, as it raised it.
    """
    try:
        return ray.get(reference, timeout=deadline_s)
    except GetTimeoutError:
        raise DeadlineError(f"the flow waited {deadline_s:.0f} s for {what} and got no answer") from None
    except RayActorError as error:
        raise ResourceError(f"{what}: the actor is gone ({first_line(error)}); look into the run folder's logs") from error
    except RayTaskError as error:
        if isinstance(error.cause, LibraError):
            raise error.cause from error
        raise
