"""From a bucket to an engine: the least loaded one with a free slot, ties at random; full or missing buckets give way."""

import random
from collections.abc import Sequence

from libra_core.ports.routing import EngineLoad
from libra_core.types.ids import EngineId


class TieBreaker:
    """Ties are drawn from one seeded generator, so that a run can be repeated and restarts do not favour engine 0."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def least_loaded(self, engines: Sequence[EngineLoad]) -> EngineLoad:
        """Per GPU, among those with a free slot; among all of them when none has one."""
        assert engines, "routing needs at least one engine"
        if len(engines) == 1:
            return engines[0]
        open_engines = [engine for engine in engines if not is_full(engine)]
        lowest, best = float("inf"), list[EngineLoad]()
        for engine in open_engines or engines:
            load = engine.in_flight / engine.tp
            if load < lowest:
                lowest, best = load, [engine]
            elif load == lowest:
                best.append(engine)
        return best[0] if len(best) == 1 else self._random.choice(best)

    def in_bucket(self, bucket: int, current: EngineId | None, engines: Sequence[EngineLoad]) -> EngineLoad:
        """The current engine where it is of that bucket, else one of it with a free slot, else the current engine.

        A trajectory without an engine goes to the next larger bucket with a free slot, then to the next smaller one.
        """
        home: EngineLoad | None = None
        for engine in engines:
            if engine.engine_id == current:
                home = engine
                break
        if home is not None and home.bucket == bucket:
            return home
        right = [engine for engine in engines if engine.bucket == bucket and not is_full(engine)]
        if right:
            return self.least_loaded(right)
        if home is not None:
            return home
        free = [engine for engine in engines if not is_full(engine)]
        if not free:
            return self.least_loaded(engines)
        nearest = min({engine.bucket for engine in free}, key=lambda other: (other < bucket, abs(other - bucket)))
        return self.least_loaded([engine for engine in free if engine.bucket == nearest])


def is_full(engine: EngineLoad) -> bool:
    return engine.capacity is not None and engine.in_flight >= engine.capacity


def bucket_of(current: EngineId | None, engines: Sequence[EngineLoad]) -> int | None:
    """Bucket that holds the trajectory; None before the first turn and after the loss of its engine."""
    if current is None:
        return None
    return next((engine.bucket for engine in engines if engine.engine_id == current), None)
