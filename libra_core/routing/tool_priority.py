"""Baseline in the manner of DynaRL: the more tool calls a trajectory has finished, the faster the engine it gets.

Source: docs/references.md#systems-compared-with.
"""

from collections.abc import Sequence

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.placement import TieBreaker, bucket_of
from libra_core.routing.ranks import LiveRanks
from libra_core.types.ids import EngineId, TrajectoryId


class ToolPriority:
    """Only promotes: whoever has a fast engine keeps it."""

    def __init__(self, buckets: Buckets, *, seed: int) -> None:
        self._ranks = LiveRanks(buckets)
        self._placement = TieBreaker(seed)

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        calls = len(turn.tool_returns)
        ranked = self._ranks.place(turn.trajectory_id, float(calls))
        home = bucket_of(turn.current, engines)
        target = max(home or 0, ranked) if calls else (home or 0)
        return self._placement.in_bucket(target, turn.current, engines).engine_id

    def learn(self, finished: FinishedTrajectory) -> None:
        self._ranks.finish(finished.trajectory_id, finished.generated_tokens)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self._ranks.drop(trajectory_id)

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        self._ranks.retune(buckets)
