"""Client of the training world: the same call to every rank, one deadline, and the name of the rank that died."""

import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from libra_core.errors import DeadlineError, LibraError, TrainerLostError
from libra_core.runtime.rollout.fleet import ActorHandle, first_line

_FETCH_S = 60.0
"""For answers that are there."""
_PEER_GRACE_S = 3.0
"""How long a failed call waits for the other ranks to show which of them died."""


class TrainerGroup:
    """All ranks of the core training world.

    Collectives need the same order of calls on every rank, so only one process, the one that runs the flow, may hold this.
    """

    def __init__(self, ranks: list[ActorHandle]) -> None:
        self._ranks = ranks

    @property
    def first(self) -> ActorHandle:
        """Rank 0."""
        return self._ranks[0]

    def start(self, method: str, *args: Any) -> list[Any]:
        """Send one call to every rank; pass the references to `wait`."""
        return [getattr(rank, method).remote(*args) for rank in self._ranks]

    def call(self, method: str, *args: Any, deadline_s: float) -> list[Any]:
        """One call on every rank.

        Raises:
            TrainerLostError: a rank died; the others' collectives are void.
            DeadlineError: a rank did not answer in time.
        """
        return self.wait(method, self.start(method, *args), deadline_s=deadline_s)

    def finished(self, references: list[Any]) -> bool:
        """Whether every rank has answered, or one has failed."""
        done, pending = ray.wait(references, num_returns=len(references), timeout=0)
        return not pending or any(_failure_of(reference) is not None for reference in done)

    def wait(self, what: str, references: list[Any], *, deadline_s: float) -> list[Any]:
        pending = list(references)
        end = time.monotonic() + deadline_s
        while pending:
            done, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, end - time.monotonic()))
            if not done:
                late = sorted(references.index(reference) for reference in pending)
                raise DeadlineError(
                    f"trainer rank {', '.join(map(str, late))} did not finish {what} within {deadline_s:.0f} s; "
                    "raise training.update_deadline_s if steps are that long, else look into the run folder's logs"
                )
            if _failure_of(done[0]) is not None:
                raise _verdict(what, references)
        return ray.get(references, timeout=_FETCH_S)


def _failure_of(reference: Any) -> RayActorError | RayTaskError | None:
    """What a finished call raised."""
    try:
        ray.get(reference, timeout=0)
    except (RayActorError, RayTaskError) as error:
        return error
    except GetTimeoutError:
        return None
    return None


def _verdict(what: str, references: list[Any]) -> LibraError:
    """One sentence for a failed collective: a dead rank first, since the others merely saw their peer go."""
    ray.wait(references, num_returns=len(references), timeout=_PEER_GRACE_S)
    failures = {rank: failure for rank, reference in enumerate(references) if (failure := _failure_of(reference)) is not None}
    for rank, failure in failures.items():
        if isinstance(failure, RayActorError):
            return TrainerLostError(
                f"trainer rank {rank} died during {what}: {first_line(failure)}; "
                "resume the run with `libra train CONFIG --resume RUN_DIR`"
            )
    rank, failure = next(iter(failures.items()))
    cause = failure.cause if isinstance(failure, RayTaskError) else failure
    if isinstance(cause, LibraError):
        return cause
    return TrainerLostError(f"trainer rank {rank} failed during {what}: {type(cause).__name__}: {first_line(cause)}")
