"""C-MLFQ for accuracy: the bucket in which the total most probably ends, once it is more likely than all others together.

At most one move per trajectory: the figure that papers report counts a second one as an error.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.expected_cost import Start
from libra_core.routing.placement import TieBreaker, bucket_of
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.routing.residual import Residual
from libra_core.routing.sketch import CENTRES
from libra_core.routing.tree_reader import ENOUGH, TreeReader
from libra_core.types.ids import EngineId, TrajectoryId

_CENTRES = np.array(CENTRES)
_CONFIDENCE = 0.75
"""Least probability of the target."""


class MostLikely:
    """Before the first turn the most probable bucket is taken whatever it has."""

    def __init__(self, buckets: Buckets, tree: PrefixTree, *, start: Start, seed: int) -> None:
        self.buckets = buckets
        self.reader = TreeReader(tree)
        self._start: Start = start
        self._placement = TieBreaker(seed)
        self._first: dict[TrajectoryId, int] = {}
        """Bucket in which a trajectory was first seen."""

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        home = bucket_of(turn.current, engines)
        residual = self.reader.residual(turn)
        target = 0 if home is None else home
        moved = home is not None and self._first.setdefault(turn.trajectory_id, home) != home
        if residual.evidence >= ENOUGH and not moved:
            shares = self._bucket_shares(turn.generated_tokens, residual)
            likely = int(np.argmax(shares))
            if home is None:
                target = likely if self._start == "predicted" or turn.tool_returns else 0
            elif shares[likely] >= _CONFIDENCE:
                target = likely
        return self._placement.in_bucket(target, turn.current, engines).engine_id

    def learn(self, finished: FinishedTrajectory) -> None:
        self._first.pop(finished.trajectory_id, None)
        self.reader.learn(finished)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self._first.pop(trajectory_id, None)
        self.reader.forget(trajectory_id)

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        self.buckets = buckets

    def _bucket_shares(self, generated_tokens: int, residual: Residual) -> NDArray[Any]:
        places = np.searchsorted(self.buckets.limits, generated_tokens + _CENTRES)
        return np.bincount(places, weights=residual.shares, minlength=len(self.buckets))
