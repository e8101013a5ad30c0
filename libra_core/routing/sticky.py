"""Baseline: the least loaded engine at the start, and that one to the end."""

from collections.abc import Sequence

from libra_core.ports.routing import EngineLoad, TurnContext
from libra_core.routing.placement import TieBreaker, bucket_of
from libra_core.routing.stateless import Stateless
from libra_core.types.ids import EngineId


class Sticky(Stateless):
    """Moves only when its engine is lost."""

    def __init__(self, *, seed: int) -> None:
        self._placement = TieBreaker(seed)

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        if turn.current is not None and bucket_of(turn.current, engines) is not None:
            return turn.current
        return self._placement.least_loaded(engines).engine_id
