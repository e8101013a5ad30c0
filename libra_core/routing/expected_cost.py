"""C-MLFQ by expected cost: the bucket where finishing costs least, under the whole distribution of what is left.

    argmin over buckets of  Σ p(r)·decode_s(bucket, generated, r)·load + moving there

A move must gain its own price and a share of it on top; ties stay.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.placement import TieBreaker
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.routing.residual import Residual
from libra_core.routing.sketch import CENTRES
from libra_core.routing.tree_reader import ENOUGH, TreeReader
from libra_core.types.ids import EngineId, TrajectoryId

_STEPS_PER_OCTAVE = 8
_CACHED_TABLES = 512
Start = Literal["smallest", "predicted"]


class ExpectedCost:
    """Knows loads only as slowdown: how much longer an engine's step takes than on the fleet on the whole."""

    def __init__(
        self, buckets: Buckets, costs: RoutingCosts, tree: PrefixTree, *, start: Start, hysteresis: float, seed: int
    ) -> None:
        self.buckets = buckets
        self.reader = TreeReader(tree)
        self._start: Start = start
        self._hysteresis = hysteresis
        self._placement = TieBreaker(seed)
        self._tables: dict[int, NDArray[np.float32]] = {}
        self._costs = costs

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        home, emptiest, usual = _survey(engines, turn.current)
        residual = self.reader.residual(turn)
        if residual.evidence < ENOUGH or (home is None and self._start == "smallest" and not turn.tool_returns):
            target = 0 if home is None else home.bucket
        else:
            target = self._cheapest(turn, home, residual, _Steps(self._costs, emptiest, usual))
        if home is not None and target == home.bucket:
            return home.engine_id
        return self._placement.in_bucket(target, turn.current, engines).engine_id

    def learn(self, finished: FinishedTrajectory) -> None:
        self.reader.learn(finished)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self.reader.forget(trajectory_id)

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        self.buckets, self._costs = buckets, costs
        self._tables.clear()

    def _cheapest(self, turn: TurnContext, home: EngineLoad | None, residual: Residual, steps: "_Steps") -> int:
        decode_s: list[float] = self._table(turn.generated_tokens).dot(residual.shares).tolist()
        if home is None:
            return min(steps.emptiest, key=lambda bucket: decode_s[bucket] * steps.slowdown(bucket))
        best, best_gain_s = home.bucket, 0.0
        plain_s = decode_s[best]
        stay_s = plain_s * steps.slowdown(best)
        for bucket in steps.emptiest:
            # loads pass, lengths stay: a move must pay at equal loads as well as at those of the moment
            there_s = decode_s[bucket]
            if plain_s - there_s <= best_gain_s:
                continue
            gain_s = min(plain_s - there_s, stay_s - there_s * steps.slowdown(bucket))
            if gain_s <= best_gain_s:
                continue
            move_s = self._costs.move_s(bucket, turn.context_tokens)
            gain_s -= move_s
            if gain_s > best_gain_s and gain_s > self._hysteresis * move_s:
                best, best_gain_s = bucket, gain_s
        return best

    def _table(self, generated_tokens: int) -> NDArray[np.float32]:
        """`[buckets, BINS]` seconds to generate each bin's count; kept per eighth of an octave of what is generated already."""
        key = int(_STEPS_PER_OCTAVE * math.log2(generated_tokens + _STEPS_PER_OCTAVE))
        table = self._tables.get(key)
        if table is None:
            if len(self._tables) >= _CACHED_TABLES:
                self._tables.clear()
            rows = [
                [self._costs.decode_s(bucket, generated_tokens, rest) for rest in CENTRES] for bucket in range(len(self.buckets))
            ]
            table = self._tables[key] = np.array(rows, np.float32)
        return table


@dataclass(slots=True)
class _Steps:
    """Decode steps relative to that of an engine which is as full as the fleet on the whole."""

    costs: RoutingCosts
    emptiest: dict[int, EngineLoad | None]
    """By bucket that has a place; None: no fuller than the fleet on the whole."""
    usual: float
    """Fullness of the fleet on the whole."""

    def slowdown(self, bucket: int) -> float:
        engine = self.emptiest[bucket]
        if engine is None or not engine.capacity:
            return 1.0
        return self.costs.slowdown(bucket, engine.in_flight) / self.costs.slowdown(bucket, self.usual * engine.capacity)


def _survey(
    engines: Sequence[EngineLoad], current: EngineId | None
) -> tuple[EngineLoad | None, dict[int, EngineLoad | None], float]:
    """The trajectory's engine if it is there; the emptiest engine of each bucket that has a place; how full the fleet is on the
    whole. An engine without a capacity counts as that full."""
    home: EngineLoad | None = None
    emptiest: dict[int, EngineLoad | None] = {}
    fullness: dict[int, float] = {}
    unbounded: list[int] = []
    places = held = 0
    for engine in engines:
        capacity, load = engine.capacity, engine.in_flight
        if capacity:
            places += capacity
            held += load
        else:
            unbounded.append(engine.bucket)
        if engine.engine_id == current:
            home = engine
        elif capacity and load / capacity < fullness.get(engine.bucket, 1.0):
            fullness[engine.bucket], emptiest[engine.bucket] = load / capacity, engine
    usual = held / places if places else 0.0
    for bucket in unbounded:
        if bucket not in fullness or usual < fullness[bucket]:
            fullness[bucket], emptiest[bucket] = usual, None
    if home is not None and home.capacity:
        emptiest[home.bucket] = home
    if not emptiest:
        emptiest = dict.fromkeys((engine.bucket for engine in engines), None)
    return home, emptiest, usual
