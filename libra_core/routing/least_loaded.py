"""Least-loaded routing that respects the prefix cache: stay unless another engine is clearly emptier."""

import random
from collections.abc import Sequence

from libra_core.ports.routing import EngineLoad, TurnContext
from libra_core.routing.stateless import Stateless
from libra_core.types.ids import EngineId


class LeastLoaded(Stateless):
    """Per GPU, the engine with the fewest trajectories; ties at random, so that restarts do not favour engine 0.

    A trajectory keeps its engine, whose prefix cache holds its context, unless another one holds at least
    `move_margin` fewer trajectories per GPU.
    """

    def __init__(self, seed: int = 0, move_margin: float = 8.0) -> None:
        self._random = random.Random(seed)
        self._move_margin = move_margin

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        assert engines, "routing needs at least one engine"
        lowest = min(_load(engine) for engine in engines)
        for engine in engines:
            if engine.engine_id == turn.current and _load(engine) - lowest < self._move_margin:
                return engine.engine_id
        return self._random.choice([engine.engine_id for engine in engines if _load(engine) == lowest])


def _load(engine: EngineLoad) -> float:
    return engine.in_flight / engine.tp
