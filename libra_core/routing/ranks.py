"""From a trajectory's rank among the live ones to a bucket, as schedulers do that know an order but no lengths."""

import bisect

from libra_core.routing.buckets import Buckets
from libra_core.types.ids import TrajectoryId


class LiveRanks:
    """Scores of live trajectories; buckets take shares of the ranks as finished lengths fell into them so far."""

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets
        self._finished = [1] * len(buckets)
        """One each beforehand, so that no bucket is closed."""
        self._scores: dict[TrajectoryId, float] = {}
        self._ordered: list[float] = []

    def retune(self, buckets: Buckets) -> None:
        """Shares of other buckets are learnt anew; live scores stay."""
        if len(buckets) != len(self._finished):
            self._finished = [1] * len(buckets)
        self.buckets = buckets

    def place(self, trajectory_id: TrajectoryId, score: float) -> int:
        """Take note of the score; equal scores share their middle rank."""
        self.drop(trajectory_id)
        self._scores[trajectory_id] = score
        bisect.insort(self._ordered, score)
        low, high = bisect.bisect_left(self._ordered, score), bisect.bisect_right(self._ordered, score)
        rank = (low + high) / (2 * len(self._ordered))
        total, running = sum(self._finished), 0
        for bucket, count in enumerate(self._finished):
            running += count
            if rank <= running / total:
                return bucket
        return len(self._finished) - 1

    def finish(self, trajectory_id: TrajectoryId, generated_tokens: int) -> None:
        self.drop(trajectory_id)
        self._finished[self.buckets.of(generated_tokens)] += 1

    def drop(self, trajectory_id: TrajectoryId) -> None:
        score = self._scores.pop(trajectory_id, None)
        if score is not None:
            del self._ordered[bisect.bisect_left(self._ordered, score)]
