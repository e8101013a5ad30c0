"""Group-relative advantages. No torch: the scorer computes them before any tensor exists."""

from collections.abc import Sequence
from math import fsum, sqrt
from typing import Literal

_STD_EPSILON = 1e-6
"""Keeps the quotient finite; far below the spread of any group whose rewards differ."""


def group_advantages(
    rewards: Sequence[float | None], *, kind: Literal["group_std", "group_mean"] = "group_std"
) -> tuple[float, ...] | None:
    """Advantage of every sample of one prompt; None when a member has no reward (such a group is not trained).

    `group_std` is `(r - mean) / std` with the population deviation (GRPO, arXiv 2402.03300, section 4.1.2); `group_mean` is
    `r - mean` (Dr. GRPO, arXiv 2503.20783, section 3.2). Equal rewards give exactly 0.0 for every member.
    """
    known = [reward for reward in rewards if reward is not None]
    if not known or len(known) < len(rewards):
        return None
    if min(known) == max(known):
        return (0.0,) * len(known)
    mean = fsum(known) / len(known)
    centred = [reward - mean for reward in known]
    if kind == "group_mean":
        return tuple(centred)
    std = sqrt(fsum(value * value for value in centred) / len(centred))
    return tuple(value / (std + _STD_EPSILON) for value in centred)


def advantages(
    groups: Sequence[Sequence[float | None]], *, kind: Literal["group_std", "group_mean"] = "group_std"
) -> tuple[tuple[float, ...] | None, ...]:
    """`group_advantages` of every group, in order."""
    return tuple(group_advantages(group, kind=kind) for group in groups)
