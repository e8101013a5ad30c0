"""Client of the training world: the same call to every rank, one deadline, and the name of the rank that died."""

import logging
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from libra_core.errors import DeadlineError, LibraError, TrainerLostError
from libra_core.runtime.base.rpc import ActorHandle, ask, first_line
from libra_core.types.ids import BatchId

logger = logging.getLogger(__name__)

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


class HybridFeed:
    """Owned by the trainer's client. Never waits for a replica: the core does, up to its deadline, and drops one that is late.

    Who takes part is the core's word alone; it is passed on to the controller, which acts on what is missing in it.
    """

    def __init__(self, controller: ActorHandle) -> None:
        self._controller = controller
        self._ranks: dict[tuple[int, int], list[ActorHandle]] = {}
        """By slot and epoch."""
        self._taking_part: list[ActorHandle] = []
        self._calls: list[Any] = []

    def begin(self, batch_id: BatchId, version: int, active: dict[int, int]) -> None:
        """Open the step on the replicas that are in it."""
        self._report_failures()
        self._note(version, active)
        self._ranks = {key: self._ranks.get(key) or self._find(key[0]) for key in active.items()}
        self._taking_part = [rank for ranks in self._ranks.values() for rank in ranks]
        self._call("begin_step", batch_id)

    def feed(self, sequences: Any) -> None:
        self._call("accumulate", sequences)

    def finish(self, deadline_s: float) -> None:
        """Let them contribute and then follow the step's result."""
        self._call("finish_step", deadline_s)

    def end(self, version: int, active: dict[int, int]) -> None:
        """The step is in the weights."""
        self._note(version, active)
        self._taking_part = []

    def _note(self, version: int, active: dict[int, int]) -> None:
        self._calls.append(self._controller.note_active.remote(version, active))

    def _find(self, slot: int) -> list[ActorHandle]:
        return ask(f"the ranks of hybrid-{slot}", self._controller.replica_ranks.remote(slot))

    def _call(self, method: str, *args: Any) -> None:
        self._calls += [getattr(rank, method).remote(*args) for rank in self._taking_part]

    def _report_failures(self) -> None:
        """Of the step before; the core has acted on them long since."""
        for call in self._calls:
            try:
                ray.get(call, timeout=0)
            except GetTimeoutError:
                continue
            except RayError as error:
                logger.warning("a call about hybrid replicas failed: %s", first_line(error))
        self._calls.clear()
