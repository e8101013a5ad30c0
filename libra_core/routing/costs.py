"""What a placement costs, in seconds: the table that policies minimise and that evaluations charge."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from libra_core.routing.buckets import Buckets


class RoutingCosts(Protocol):
    """Pure. A policy may cache what it is told, so an object never changes its answers."""

    def decode_s(self, bucket: int, generated_tokens: float, remaining_tokens: float) -> float:
        """Seconds charged for generating the rest there, given how much there is already."""
        ...

    def move_s(self, bucket: int, context_tokens: float) -> float:
        """Seconds until an engine of that bucket, which holds nothing of it, can go on from this context."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Urgency times step time, plus the price of a slot.

    A token of a trajectory of final length G, generated in bucket b, is charged `F(G)·step_s[b] + price[b]`. F(G), the share of
    trajectories shorter than G, is the share of those that would wait for this one. `price[0] = 0` and
    `price[b] = price[b-1] + F(limit[b-1])·(step_s[b-1] - step_s[b])`: a slot on a faster engine is as dear as makes the bucket
    limits the lengths at which it begins to pay.
    """

    buckets: Buckets
    step_s: tuple[float, ...]
    """Loaded decode step per bucket, descending."""
    prefill_s_per_token: tuple[float, ...]
    """Per bucket."""
    lengths: tuple[float, ...]
    """Sorted lengths of finished trajectories, the source of F."""
    move_fixed_s: float = 0.0

    @property
    def price_s(self) -> tuple[float, ...]:
        """Per bucket and token."""
        prices = [0.0]
        for bucket in range(1, len(self.buckets)):
            share = self.share_below(self.buckets.limits[bucket - 1])
            prices.append(prices[-1] + share * (self.step_s[bucket - 1] - self.step_s[bucket]))
        return tuple(prices)

    def share_below(self, length: float) -> float:
        """F."""
        return bisect.bisect_left(self.lengths, length) / len(self.lengths)

    def decode_s(self, bucket: int, generated_tokens: float, remaining_tokens: float) -> float:
        urgency = self.share_below(generated_tokens + remaining_tokens)
        return remaining_tokens * (urgency * self.step_s[bucket] + self.price_s[bucket])

    def move_s(self, bucket: int, context_tokens: float) -> float:
        return self.move_fixed_s + self.prefill_s_per_token[bucket] * context_tokens


def uniform_costs(buckets: Buckets, lengths: Sequence[float]) -> CostTable:
    """Step times of 14B on A800 under load (notes of the routing documentation), for when nothing was measured."""
    raise NotImplementedError
