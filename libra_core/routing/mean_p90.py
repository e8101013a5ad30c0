"""C-MLFQ as the paper states it: go to the bucket on which the mean and the P90 of the predicted total agree, else stay.

Source: docs/references.md#the-paper.
"""

from collections.abc import Sequence

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.expected_cost import Start
from libra_core.routing.placement import TieBreaker, bucket_of
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.routing.tree_reader import ENOUGH, TreeReader
from libra_core.types.ids import EngineId, TrajectoryId

_HIGH = 0.9
_LEAST_VISITS = 1.5
"""Mean and P90 of a single sample always agree, so a prompt with fewer says nothing; one that is unknown follows all prompts."""


class MeanP90:
    """Totals are what is generated already and what is left. Neither loads nor the price of moving enter."""

    def __init__(self, buckets: Buckets, tree: PrefixTree, *, start: Start, seed: int) -> None:
        self.buckets = buckets
        self.reader = TreeReader(tree)
        self._start: Start = start
        self._placement = TieBreaker(seed)

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        home = bucket_of(turn.current, engines)
        residual = self.reader.residual(turn)
        target = 0 if home is None else home
        alone = 0 < residual.own_visits < _LEAST_VISITS
        if residual.evidence >= ENOUGH and not alone and (home is not None or turn.tool_returns or self._start == "predicted"):
            mean = self.buckets.of(turn.generated_tokens + residual.mean)
            if mean == self.buckets.of(turn.generated_tokens + residual.quantile(_HIGH)):
                target = mean
        return self._placement.in_bucket(target, turn.current, engines).engine_id

    def learn(self, finished: FinishedTrajectory) -> None:
        self.reader.learn(finished)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self.reader.forget(trajectory_id)

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        self.buckets = buckets
