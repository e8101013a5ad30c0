"""Where an iteration's time went, from spans and counters. Pure; each second is in one part.

Of what overlaps, training counts before publication, and both before waiting.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from libra_core.types.ids import EngineId
from libra_core.types.reports import EngineStats, EngineWork, RolloutReport, TimeBreakdown
from libra_core.types.trace import TraceSpan

Interval = tuple[float, float]
"""Unix seconds, start and end."""


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Sorted, disjoint intervals that cover the same time."""
    result: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def clipped(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    start, end = window
    return merged((max(a, start), min(b, end)) for a, b in intervals if b > start and a < end)


def total_s(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in merged(intervals))


def intersection(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Time that lies in both; each argument must be disjoint and sorted, as `merged` returns it."""
    result: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if end > start:
            result.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return result


class BusyClock:
    """Intervals during which a count of open work items was above zero. Single-threaded."""

    def __init__(self, keep: int = 100_000) -> None:
        self._open = 0
        self._since = 0.0
        self._closed: list[Interval] = []
        self._keep = keep

    def enter(self, now_s: float) -> None:
        if self._open == 0:
            self._since = now_s
        self._open += 1

    def leave(self, now_s: float) -> None:
        assert self._open > 0, "leave without enter"
        self._open -= 1
        if self._open == 0:
            self._closed.append((self._since, now_s))
            del self._closed[: -self._keep]

    def intervals(self, now_s: float) -> list[Interval]:
        running = [(self._since, now_s)] if self._open else []
        return merged([*self._closed, *running])


TRAINING = frozenset({"update", "accumulate", "optimizer step"})
"""Names of the trainer's spans that are training proper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes:
    """What happened between the ends of two iterations, in unix seconds."""

    window: Interval
    training: Sequence[Interval]
    waiting: Sequence[Interval]
    """When the flow waited for groups; the trainer may have worked on others meanwhile."""
    waiting_age_s: float
    publishing: Sequence[Interval]


def training_intervals(spans: Sequence[TraceSpan], window: Interval) -> list[Interval]:
    return clipped(((span.start_s, span.end_s) for span in spans if span.name in TRAINING), window)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDelta:
    """What one engine did between two looks at it."""

    busy_s: float
    """With unfinished requests, pauses left out."""
    prefill_s: float
    """Of these, spent on prompts."""
    paused_s: float
    preemptions: int
    generated_tokens: int = 0
    decode_steps: int = 0


def time_breakdown(times: IterationTimes, fleet: Sequence[EngineDelta], rollout: RolloutReport) -> TimeBreakdown:
    """Divide the iteration among its causes.

    Args:
        times: the flow's and the trainer's side.
        fleet: each engine since the end of the iteration before.
        rollout: its prefill counters.
    """
    iter_s = times.window[1] - times.window[0]
    training = clipped(times.training, times.window)
    publishing = clipped(times.publishing, times.window)
    waiting = clipped(times.waiting, times.window)
    working = clipped([*training, *publishing], times.window)
    idle_wait_s = total_s(waiting) - total_s(intersection(waiting, working))
    age_s = min(idle_wait_s, times.waiting_age_s)
    busy_s = total_s(training)
    publication_s = total_s(working) - busy_s
    engine_busy_s = fmean(min(engine.busy_s, iter_s) for engine in fleet) if fleet else 0.0
    paused_s = min(iter_s - engine_busy_s, fmean(engine.paused_s for engine in fleet) if fleet else 0.0)
    prefill_s = fmean(engine.prefill_s for engine in fleet) if fleet else 0.0
    reprefill_s = min(engine_busy_s, prefill_s * _reprefilled_share(rollout))
    return TimeBreakdown(
        trainer_busy_s=busy_s,
        trainer_waits_groups_s=idle_wait_s - age_s,
        trainer_waits_age_s=age_s,
        trainer_waits_publication_s=publication_s,
        trainer_other_s=iter_s - busy_s - publication_s - idle_wait_s,
        fleet_busy_s=engine_busy_s - reprefill_s,
        fleet_reprefill_s=reprefill_s,
        fleet_paused_s=paused_s,
        fleet_starved_s=iter_s - engine_busy_s - paused_s,
    )


def engine_deltas(before: Mapping[EngineId, EngineStats], after: Sequence[EngineStats]) -> list[EngineDelta]:
    """By engine, since the last look; a replacement counts from its start."""
    return [_since(before.get(now.engine_id), now) for now in after]


def engine_work(fleet: Sequence[EngineDelta]) -> EngineWork:
    """Of all engines together."""
    return EngineWork(
        decode_s=sum(max(0.0, engine.busy_s - engine.prefill_s) for engine in fleet),
        prefill_s=sum(engine.prefill_s for engine in fleet),
        steps=sum(engine.decode_steps for engine in fleet),
        tokens=sum(engine.generated_tokens for engine in fleet),
    )


def _since(old: EngineStats | None, now: EngineStats) -> EngineDelta:
    return EngineDelta(
        busy_s=now.busy_s - (old.busy_s if old else 0.0),
        prefill_s=now.prefill_s - (old.prefill_s if old else 0.0),
        paused_s=now.paused_s - (old.paused_s if old else 0.0),
        preemptions=now.preemptions - (old.preemptions if old else 0),
        generated_tokens=now.generated_tokens - (old.generated_tokens if old else 0),
        decode_steps=now.decode_steps - (old.decode_steps if old else 0),
    )


def _reprefilled_share(rollout: RolloutReport) -> float:
    computed = rollout.context_tokens - rollout.cached_tokens
    return min(1.0, rollout.reprefilled_tokens / computed) if computed > 0 else 0.0
