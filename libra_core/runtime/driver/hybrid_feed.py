"""The flow's side of hybrid replicas: those that take part in a step get the same parts of the batch as the core."""

import logging
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from libra_core.runtime.base.rpc import ask
from libra_core.runtime.rollout.fleet import ActorHandle, first_line
from libra_core.types.ids import BatchId

logger = logging.getLogger(__name__)


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
