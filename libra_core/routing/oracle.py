"""Bound: totals are known beforehand, so each trajectory starts in its bucket and stays."""

from collections.abc import Callable, Sequence

from libra_core.ports.routing import EngineLoad, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.placement import TieBreaker
from libra_core.routing.stateless import Stateless
from libra_core.types.ids import EngineId, TrajectoryId


class Oracle(Stateless):
    """`total_tokens` tells the generated tokens of a trajectory that has not ended yet; only simulations can."""

    def __init__(self, buckets: Buckets, total_tokens: Callable[[TrajectoryId], int], *, seed: int) -> None:
        self.buckets = buckets
        self._total_tokens = total_tokens
        self._placement = TieBreaker(seed)

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        target = self.buckets.of(self._total_tokens(turn.trajectory_id))
        return self._placement.in_bucket(target, turn.current, engines).engine_id

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        self.buckets = buckets
