"""What a placement costs, in seconds: the table that policies minimise and that evaluations charge."""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from libra_core.errors import ConfigError
from libra_core.routing.buckets import Buckets
from libra_core.types.laws import EngineLaw


class RoutingCosts(Protocol):
    """Pure. A policy may cache what it is told, so an object never changes its answers."""

    def decode_s(self, bucket: int, generated_tokens: float, remaining_tokens: float) -> float:
        """Seconds charged for generating the rest there, given how much there is already."""
        ...

    def move_s(self, bucket: int, context_tokens: float) -> float:
        """Seconds until an engine of that bucket, which holds nothing of it, can go on from this context."""
        ...

    def slowdown(self, bucket: int, in_flight: float) -> float:
        """Decode step of an engine of that bucket with so many trajectories, relative to the empty engine's."""
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
    """Loaded decode step per bucket."""
    growth: tuple[float, ...]
    """Per bucket: what one more trajectory adds to a decode step, relative to the empty engine's step."""
    move_s_per_token: tuple[float, ...]
    """Per bucket: prefill of the context there, or what a hand-over was measured to take."""
    lengths: tuple[float, ...]
    """Generated tokens of finished trajectories, sorted: the source of F."""
    move_fixed_s: float = 0.0
    price_s: tuple[float, ...] = field(init=False)
    """Per bucket and token."""

    def __post_init__(self) -> None:
        if not len(self.step_s) == len(self.growth) == len(self.move_s_per_token) == len(self.buckets):
            raise ConfigError(f"{len(self.buckets)} buckets need as many step times and prefill times; got {len(self.step_s)}")
        if not self.lengths or list(self.lengths) != sorted(self.lengths):
            raise ConfigError("a cost table needs the sorted lengths of finished trajectories")
        prices = [0.0]
        for bucket in range(1, len(self.buckets)):
            share = self.share_below(self.buckets.limits[bucket - 1])
            prices.append(prices[-1] + share * (self.step_s[bucket - 1] - self.step_s[bucket]))
        object.__setattr__(self, "price_s", tuple(prices))

    def share_below(self, length: float) -> float:
        """F."""
        return bisect.bisect_left(self.lengths, length) / len(self.lengths)

    def decode_s(self, bucket: int, generated_tokens: float, remaining_tokens: float) -> float:
        urgency = self.share_below(generated_tokens + remaining_tokens)
        return remaining_tokens * (urgency * self.step_s[bucket] + self.price_s[bucket])

    def move_s(self, bucket: int, context_tokens: float) -> float:
        return self.move_fixed_s + self.move_s_per_token[bucket] * context_tokens

    def slowdown(self, bucket: int, in_flight: float) -> float:
        return 1.0 + self.growth[bucket] * in_flight


_LOADED_BATCH = 32
_LOADED_CONTEXT = 8192.0
"""Of each sequence."""


A800_14B = {
    1: EngineLaw(a_s=21.0e-3, b_s=41e-6, c_s=0.112e-6, prefill_b_s_per_token=140e-6, kv_tokens=241_000),
    2: EngineLaw(a_s=12.4e-3, b_s=47e-6, c_s=0.056e-6, prefill_b_s_per_token=91e-6, kv_tokens=662_000),
    4: EngineLaw(a_s=7.8e-3, b_s=44e-6, c_s=0.029e-6, prefill_b_s_per_token=64e-6, kv_tokens=1_505_000),
    8: EngineLaw(a_s=5.8e-3, b_s=40e-6, c_s=0.0145e-6, prefill_b_s_per_token=49e-6, kv_tokens=3_189_000),
}
"""A 14B model on A800, derived from measured A100 kernels (docs/routing.md); the ratios between degrees are what counts."""


def table_for(
    buckets: Buckets,
    lengths: Sequence[float],
    laws: Mapping[int, EngineLaw] | None = None,
    *,
    move_s_per_token: Mapping[int, float] = MappingProxyType({}),
) -> CostTable:
    """The table under a usual load; a degree without a law takes the nearest one, for want of better.

    `move_s_per_token` holds what moves to engines of a degree were measured to take; a degree without it prefills by its law.

    Raises:
        ConfigError: no lengths.
    """
    known = A800_14B if laws is None else laws
    chosen = [known[min(known, key=lambda tp: (abs(tp - degree), tp))] for degree in buckets.degrees]
    return CostTable(
        buckets=buckets,
        step_s=tuple(law.step_s(_LOADED_BATCH, _LOADED_BATCH * _LOADED_CONTEXT) for law in chosen),
        growth=tuple((law.b_s + law.c_s * _LOADED_CONTEXT) / law.a_s for law in chosen),
        move_s_per_token=tuple(
            move_s_per_token.get(degree, law.prefill_b_s_per_token) for degree, law in zip(buckets.degrees, chosen, strict=True)
        ),
        lengths=tuple(sorted(lengths)),
    )
