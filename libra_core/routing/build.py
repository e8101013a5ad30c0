"""From a name to a policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from libra_core.ports.routing import RoutingPolicy
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.types.ids import TrajectoryId

POLICIES = (
    "expected_cost",
    "mean_p90",
    "most_likely",
    "least_loaded",
    "sticky",
    "mlfq",
    "embedding",
    "tool_priority",
    "presorted",
    "oracle",
)
"""The first three are C-MLFQ: they read the prefix tree. `cmlfq` is another name of the first."""

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to vectors `[texts, width]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSetup:
    """What policies are made of; each takes what it needs."""

    buckets: Buckets
    costs: RoutingCosts
    seed: int = 0
    start: Literal["smallest", "predicted"] = "predicted"
    """Where a trajectory begins: as the paper does, or where its prompt's history says once there is enough of it."""
    hysteresis: float = 0.5
    """A move must gain its price and this share of it on top."""
    tree: PrefixTree | None = None
    """Unset: an empty one. Policies that are given the same tree each learn into it: give each its own."""
    total_tokens: Callable[[TrajectoryId], int] | None = None
    """True totals of generated tokens, for `oracle` alone."""
    embed: Embed | None = None
    """For `embedding`; unset: the packaged sentence model (extra `embedding`)."""


def build_policy(name: str, setup: RouterSetup) -> RoutingPolicy:
    """Raises `ConfigError` naming the known policies."""
    raise NotImplementedError
