"""Baseline: classic multi-level feedback queue. Start in the smallest bucket; whoever overruns its limit goes one further."""

from collections.abc import Sequence

from libra_core.ports.routing import EngineLoad, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.placement import TieBreaker, bucket_of
from libra_core.routing.stateless import Stateless
from libra_core.types.ids import EngineId


class Mlfq(Stateless):
    """Predicts nothing: it moves when the length is there already. Two overrun limits at once are one move."""

    def __init__(self, buckets: Buckets, *, seed: int) -> None:
        self.buckets = buckets
        self._placement = TieBreaker(seed)

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        home = bucket_of(turn.current, engines)
        reached = self.buckets.of(turn.generated_tokens)
        return self._placement.in_bucket(max(home or 0, reached), turn.current, engines).engine_id

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        self.buckets = buckets
