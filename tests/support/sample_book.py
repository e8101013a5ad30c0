"""Which samples are trained, exactly once each, although a replica that took some may die before its gradient counts. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CORE = -1
"""Holder of what the core replicas train themselves: it counts whenever the step does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A sample in work: for one step, by the core or by one hybrid slot in one epoch."""

    step: int
    slot: int
    epoch: int = 0


@dataclass(slots=True)
class SampleBook:
    """Every sample is waiting, leased or trained, and in one of the three only."""

    waiting: list[int] = field(default_factory=list[int])
    leased: dict[int, Lease] = field(default_factory=dict[int, Lease])
    trained: dict[int, int] = field(default_factory=dict[int, int])
    """Sample to the step that it was trained in."""

    def add(self, samples: Iterable[int]) -> None:
        """New samples; one that is known already is left where it is."""
        known = {*self.waiting, *self.leased, *self.trained}
        self.waiting.extend(sample for sample in dict.fromkeys(samples) if sample not in known)

    def lease(self, samples: Iterable[int], lease: Lease) -> None:
        """Hand waiting samples out."""
        for sample in samples:
            self.waiting.remove(sample)
            self.leased[sample] = lease

    def take_back(self, step: int, slot: int) -> tuple[int, ...]:
        """What a lost replica held waits again, in time to be leased to the core in the same step."""
        return self._wait_again(sample for sample, lease in self.leased.items() if (lease.step, lease.slot) == (step, slot))

    def resolve(self, step: int, counted: Mapping[int, int]) -> tuple[int, ...]:
        """Close a step whose gradient holds the core's samples and those of `counted`, slot to epoch.

        What others hold of this step goes back to the front of the queue and is returned. Settling a step again changes nothing.
        """
        for sample, lease in [item for item in self.leased.items() if item[1].step == step]:
            if lease.slot == CORE or counted.get(lease.slot) == lease.epoch:
                del self.leased[sample]
                self.trained[sample] = step
        return self.discard(step)

    def discard(self, step: int) -> tuple[int, ...]:
        """A step that is void: everything handed out for it waits again."""
        return self._wait_again(sample for sample, lease in self.leased.items() if lease.step == step)

    def _wait_again(self, samples: Iterable[int]) -> tuple[int, ...]:
        back = tuple(samples)
        for sample in back:
            del self.leased[sample]
        self.waiting[:0] = back
        return back
