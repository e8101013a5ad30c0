"""A reference stronger than the published baselines: what one gets from nothing but the mean of a prompt's earlier samples."""

from collections.abc import Sequence

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.placement import TieBreaker, bucket_of
from libra_core.types.ids import EngineId, PromptId, TrajectoryId

PROMPT_MEAN = "prompt_mean"


class PromptMean:
    """Placed once by the mean total of the prompt's finished samples, else of all; never moved. Keeps every prompt."""

    def __init__(self, buckets: Buckets, *, seed: int) -> None:
        self._buckets = buckets
        self._placement = TieBreaker(seed)
        self._sums: dict[PromptId | None, tuple[int, int]] = {}

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        home = bucket_of(turn.current, engines)
        if home is None:
            count, tokens = self._sums.get(turn.prompt_id) or self._sums.get(None, (1, 0))
            home = self._buckets.of(tokens / count)
        return self._placement.in_bucket(home, turn.current, engines).engine_id

    def learn(self, finished: FinishedTrajectory) -> None:
        for key in (finished.prompt_id, None):
            count, tokens = self._sums.get(key, (0, 0))
            self._sums[key] = (count + 1, tokens + finished.generated_tokens)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Nothing is kept per trajectory."""
