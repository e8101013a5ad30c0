"""Busy intervals of the fleet and the trainer: how long each worked in a window, and how long both did."""

from collections.abc import Iterable, Sequence

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
