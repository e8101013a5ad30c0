"""Baseline in the manner of Heddle: trajectories sorted by a predicted total at the start, moved in tool gaps if far off.

Source: docs/references.md#systems-compared-with.
"""

from collections.abc import Sequence

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.placement import TieBreaker, bucket_of
from libra_core.routing.ranks import LiveRanks
from libra_core.types.ids import EngineId, PromptId, TrajectoryId

_MOST_PROMPTS = 200_000


class Presorted:
    """The prediction is the mean of the prompt's finished samples, else of all, and at least what is generated already."""

    def __init__(self, buckets: Buckets, *, seed: int) -> None:
        self._ranks = LiveRanks(buckets)
        self._placement = TieBreaker(seed)
        self._sums: dict[PromptId, tuple[int, int]] = {}
        """Samples and their tokens, by prompt; the longest unused go first."""
        self._all = (0, 0)

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        count, tokens = self._sums.get(turn.prompt_id, self._all)
        predicted = max(tokens / count if count else 0.0, float(turn.generated_tokens))
        ranked = self._ranks.place(turn.trajectory_id, predicted)
        home = bucket_of(turn.current, engines)
        target = ranked if home is None or ranked > home else home
        return self._placement.in_bucket(target, turn.current, engines).engine_id

    def learn(self, finished: FinishedTrajectory) -> None:
        total = finished.generated_tokens
        self._ranks.finish(finished.trajectory_id, total)
        count, tokens = self._sums.pop(finished.prompt_id, (0, 0))
        self._sums[finished.prompt_id] = (count + 1, tokens + total)
        self._all = (self._all[0] + 1, self._all[1] + total)
        if len(self._sums) > _MOST_PROMPTS:
            del self._sums[next(iter(self._sums))]

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self._ranks.drop(trajectory_id)

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        self._ranks.retune(buckets)
