"""The exact mixed fleet for known lengths: sorted requests, one contiguous interval an engine, least makespan.

Decision form: for a makespan T let `end_t(i)` be the first request that one engine of degree t no longer finishes in time when
it serves requests i, i+1, …. The most requests that g GPUs serve is `reach(g) = max over t of end_t(reach(g - t))`, which is
`gpus(j) = min over t of (t + gpus(start_t(j, T)))` read from the other side. The least GPUs as a function of T answers every
budget. Bisection on T ends at the makespan of a partition that no smaller T admits, so the result is exact, not within a
tolerance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MAX_BISECTIONS = 200


class IntervalCost(Protocol):
    """Seconds for sorted requests first..last (inclusive) on one engine of degree `tp`; arrays `[m]`.

    Must not fall when `last` grows or `first` shrinks; infinite when a request does not fit.
    """

    def __call__(self, tp: int, first: Ints, last: Ints) -> Floats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShare:
    """One engine and the sorted requests first..last (inclusive) that it serves."""

    tp: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    makespan_s: float
    shares: tuple[EngineShare, ...]
    """In the order of the requests."""

    @property
    def num_gpus(self) -> int:
        return sum(share.tp for share in self.shares)


class PartitionSolver:
    """Solves all GPU budgets of one request list; decisions at one T are shared between budgets."""

    def __init__(self, num_requests: int, degrees: Sequence[int], cost: IntervalCost) -> None:
        self._n = num_requests
        self._degrees = tuple(sorted(degrees))
        self._cost = cost
        self._first = np.arange(num_requests, dtype=np.int64)
        self._single = {tp: cost(tp, self._first, self._first) for tp in self._degrees}
        self._ends: dict[float, dict[int, Ints]] = {}

    def least_gpus(self, makespan_s: float, most: int) -> int | None:
        """Fewest GPUs that finish within `makespan_s`, or None when `most` do not."""
        partition = self._within(makespan_s, most)
        return None if partition is None else partition.num_gpus

    def solve(self, num_gpus: int) -> Partition | None:
        """The least makespan on at most `num_gpus` GPUs, with the fewest GPUs that reach it; None when a request fits nowhere."""
        best = self._within(self._loosest(), num_gpus)
        if best is None:
            return None
        low = float(min(self._single.values(), key=lambda cost: float(cost[-1]))[-1])
        low = min(low, best.makespan_s) * (1 - 1e-9)
        for _ in range(_MAX_BISECTIONS):
            below = float(np.nextafter(best.makespan_s, 0.0))
            if low >= below:
                break
            middle = (low + best.makespan_s) / 2
            trial = self._within(min(middle, below), num_gpus)
            if trial is not None:
                best = trial
                continue
            low = middle
            if best.makespan_s - low < 1e-6 * best.makespan_s:
                trial = self._within(below, num_gpus)
                if trial is None:
                    break
                best = trial
        return best

    def _loosest(self) -> float:
        """A makespan that one engine suffices for, over all degrees that can serve everything; else the largest finite one."""
        whole = [float(self._cost(tp, self._first[:1], self._first[-1:])[0]) for tp in self._degrees]
        finite = [value for value in whole if np.isfinite(value)]
        singles = [float(cost[np.isfinite(cost)].sum()) for cost in self._single.values()]
        return max([*finite, *singles]) * 2

    def _within(self, makespan_s: float, num_gpus: int) -> Partition | None:
        ends = {tp: end.tolist() for tp, end in self._ends_at(makespan_s).items()}
        reach = [0] * (num_gpus + 1)
        used = [0] * (num_gpus + 1)
        for gpus in range(1, num_gpus + 1):
            reach[gpus] = reach[gpus - 1]
            for tp in self._degrees:
                if tp > gpus or reach[gpus - tp] >= self._n:
                    continue
                end = ends[tp][reach[gpus - tp]]
                if end > reach[gpus]:
                    reach[gpus], used[gpus] = end, tp
            if reach[gpus] >= self._n:
                return self._trace(reach, used, gpus)
        return None

    def _trace(self, reach: list[int], used: list[int], gpus: int) -> Partition:
        shares: list[EngineShare] = []
        while gpus > 0:
            tp = used[gpus]
            if tp == 0:
                gpus -= 1
                continue
            shares.append(EngineShare(tp=tp, first=reach[gpus - tp], last=reach[gpus] - 1))
            gpus -= tp
        shares.reverse()
        first, last = _ints([share.first for share in shares]), _ints([share.last for share in shares])
        costs = [float(self._cost(share.tp, first[k : k + 1], last[k : k + 1])[0]) for k, share in enumerate(shares)]
        return Partition(makespan_s=max(costs), shares=tuple(shares))

    def _ends_at(self, makespan_s: float) -> dict[int, Ints]:
        """`{tp: end_t(i) [n]}` by binary search for all i at once, between the answers at the nearest T already known."""
        if makespan_s in self._ends:
            return self._ends[makespan_s]
        below = max((known for known in self._ends if known < makespan_s), default=None)
        above = min((known for known in self._ends if known > makespan_s), default=None)
        ends: dict[int, Ints] = {}
        for tp in self._degrees:
            low = self._first if below is None else self._ends[below][tp]
            high = np.full(self._n, self._n, dtype=np.int64) if above is None else self._ends[above][tp]
            ends[tp] = self._search(tp, makespan_s, low.copy(), high.copy())
        self._ends[makespan_s] = ends
        return ends

    def _search(self, tp: int, makespan_s: float, low: Ints, high: Ints) -> Ints:
        while True:
            open_rows = np.flatnonzero(low < high)
            if open_rows.size == 0:
                return low
            middle = (low[open_rows] + high[open_rows]) // 2
            in_time = self._cost(tp, open_rows.astype(np.int64), middle) <= makespan_s
            low[open_rows[in_time]] = middle[in_time] + 1
            high[open_rows[~in_time]] = middle[~in_time]


def solve_partition(num_requests: int, degrees: Sequence[int], num_gpus: int, cost: IntervalCost) -> Partition | None:
    """One budget; see `PartitionSolver`."""
    return PartitionSolver(num_requests, degrees, cost).solve(num_gpus)


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
