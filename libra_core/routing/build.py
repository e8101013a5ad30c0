"""From a name to a policy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from libra_core.errors import ConfigError
from libra_core.ports.routing import RoutingPolicy
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.embedding import Embed, Embedding
from libra_core.routing.expected_cost import ExpectedCost, Start
from libra_core.routing.least_loaded import LeastLoaded
from libra_core.routing.mean_p90 import MeanP90
from libra_core.routing.mlfq import Mlfq
from libra_core.routing.most_likely import MostLikely
from libra_core.routing.oracle import Oracle
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.routing.presorted import Presorted
from libra_core.routing.sticky import Sticky
from libra_core.routing.tool_priority import ToolPriority
from libra_core.types.ids import TrajectoryId


class Policy(RoutingPolicy, Protocol):
    """A routing policy whose buckets may follow the lengths."""

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        """Other limits and prices from here on; where the fleet's degrees have changed, other buckets too."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSetup:
    """What policies are made of; each takes what it needs."""

    buckets: Buckets
    costs: RoutingCosts
    seed: int = 0
    start: Start = "predicted"
    """Where a trajectory begins: in the smallest bucket as the paper does, or where what finished before says."""
    hysteresis: float = 0.5
    """A move must gain its price and this share of it on top."""
    tree: PrefixTree | None = None
    """Unset: an empty one. Policies that are given the same tree each learn into it: give each its own."""
    total_tokens: Callable[[TrajectoryId], int] | None = None
    """True totals of generated tokens, for `oracle` alone."""
    embed: Embed | None = None
    """For `embedding` alone; `engines.sentence_model` has one."""

    @property
    def own_tree(self) -> PrefixTree:
        return PrefixTree() if self.tree is None else self.tree


def _embedding(setup: RouterSetup) -> Policy:
    if setup.embed is None:
        raise ConfigError("the embedding router needs a sentence model; none was given")
    return Embedding(setup.buckets, setup.embed, seed=setup.seed)


def _oracle(setup: RouterSetup) -> Policy:
    if setup.total_tokens is None:
        raise ConfigError("the oracle router must be told the totals beforehand; only simulations and evaluations can")
    return Oracle(setup.buckets, setup.total_tokens, seed=setup.seed)


_BUILDERS: dict[str, Callable[[RouterSetup], Policy]] = {
    "expected_cost": lambda s: ExpectedCost(s.buckets, s.costs, s.own_tree, start=s.start, hysteresis=s.hysteresis, seed=s.seed),
    "mean_p90": lambda s: MeanP90(s.buckets, s.own_tree, start=s.start, seed=s.seed),
    "most_likely": lambda s: MostLikely(s.buckets, s.own_tree, start=s.start, seed=s.seed),
    "least_loaded": lambda s: LeastLoaded(s.seed),
    "sticky": lambda s: Sticky(seed=s.seed),
    "mlfq": lambda s: Mlfq(s.buckets, seed=s.seed),
    "embedding": _embedding,
    "tool_priority": lambda s: ToolPriority(s.buckets, seed=s.seed),
    "presorted": lambda s: Presorted(s.buckets, seed=s.seed),
    "oracle": _oracle,
}
POLICIES = tuple(_BUILDERS)
READS_TREE = POLICIES[:3]
"""C-MLFQ: they read the prefix tree. `cmlfq` is another name of the first."""


def plain_name(name: str) -> str:
    """Without the other name."""
    return "expected_cost" if name == "cmlfq" else name


def build_policy(name: str, setup: RouterSetup) -> Policy:
    """Raises `ConfigError` for an unknown name, and for one whose needs `setup` lacks."""
    builder = _BUILDERS.get(plain_name(name))
    if builder is None:
        raise ConfigError(f"there is no routing policy {name!r}; there are cmlfq (= expected_cost), {', '.join(POLICIES)}")
    return builder(setup)
