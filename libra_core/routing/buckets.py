"""Buckets: groups of engines of one TP degree, each meant for trajectories up to a number of generated tokens."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from libra_core.errors import ConfigError

QUANTILES = (0.5, 0.8, 0.95)
"""Where lengths are cut when nothing else is known."""
_USUAL: dict[int, tuple[float, ...]] = {1: (), 2: (0.8,), 3: (0.5, 0.9), 4: QUANTILES}


def usual_quantiles(buckets: int) -> tuple[float, ...]:
    """Cuts for that many buckets: most trajectories are short, and the tail is what waits."""
    return _USUAL.get(buckets) or tuple(step / buckets for step in range(1, buckets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """`limits[i]` is the largest total of generated tokens meant for bucket i; the last bucket has none."""

    degrees: tuple[int, ...]
    """TP per bucket, ascending."""
    limits: tuple[float, ...]
    """`[buckets]`, ascending; the last one is infinite."""

    def __post_init__(self) -> None:
        if not self.degrees or len(self.degrees) != len(self.limits) or list(self.limits) != sorted(set(self.limits)):
            raise ConfigError(
                f"buckets of degrees {list(self.degrees)} cannot have the limits {list(self.limits)}: one ascending limit per "
                "bucket, the last one infinite"
            )
        if self.limits[-1] != math.inf:
            raise ConfigError(f"the last bucket takes every length; its limit is {self.limits[-1]:g}, make it infinite")

    def __len__(self) -> int:
        return len(self.degrees)

    def of(self, generated_tokens: float) -> int:
        """Bucket of a trajectory of that total."""
        return bisect.bisect_left(self.limits, generated_tokens)


def buckets_from_lengths(lengths: Sequence[float], degrees: Sequence[int], quantiles: Sequence[float] = QUANTILES) -> Buckets:
    """Cut at quantiles of finished lengths; equal cuts are moved apart by one token so that every bucket exists.

    Raises:
        ConfigError: no lengths, or the number of quantiles is not one less than that of degrees.
    """
    if not lengths:
        raise ConfigError("bucket limits need at least one finished trajectory; give limits instead")
    if len(quantiles) != len(degrees) - 1:
        raise ConfigError(f"{len(degrees)} buckets need {len(degrees) - 1} quantiles between them, not {len(quantiles)}")
    ordered = sorted(lengths)
    limits: list[float] = []
    for share in quantiles:
        cut = float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])
        limits.append(max(cut, limits[-1] + 1) if limits else cut)
    return Buckets(degrees=tuple(degrees), limits=(*limits, math.inf))
