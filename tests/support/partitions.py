"""A plain law of interval costs, and exhaustive searches to hold the planner against."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np


@dataclass(frozen=True, slots=True)
class PlainCost:
    """Decode makespan of requests started together, at most `most` at once, on engines that divide work by their degree."""

    generated: tuple[float, ...]
    """`[n]`, ascending."""
    prompt: float
    own_s: float
    """Seconds of a step that no degree divides."""
    shared_s: float
    """Seconds of a step that degrees divide."""
    per_sequence_s: float
    per_token_s: float
    most: int
    limit: float
    """Longest request that one GPU holds; a degree holds so many times more."""

    def of(self, tp: int, members: Sequence[int]) -> float:
        """Any set of requests on one engine."""
        lengths = [self.generated[member] for member in members]
        longest, total = max(lengths), sum(lengths)
        if longest + self.prompt > self.limit * tp:
            return float("inf")
        steps = max(longest, total / self.most + (1 - 1 / self.most) * longest)
        read = self.prompt * total + sum(length * length for length in lengths) / 2
        return (self.own_s + self.shared_s / tp) * steps + self.per_sequence_s * total + self.per_token_s / tp * read

    def __call__(self, tp: int, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        return np.array([self.of(tp, range(a, b + 1)) for a, b in zip(first.tolist(), last.tolist(), strict=True)])


def random_cost(seed: int, num_requests: int) -> PlainCost:
    random = np.random.default_rng(seed)
    generated = np.sort(np.rint(300 * np.exp(random.uniform(0.3, 1.8) * random.normal(size=num_requests))) + 1)
    return PlainCost(
        generated=tuple(generated.tolist()),
        prompt=float(random.integers(1, 500)),
        own_s=random.uniform(0.1, 2),
        shared_s=random.uniform(0.1, 5),
        per_sequence_s=random.uniform(0, 0.3),
        per_token_s=random.uniform(0, 0.01),
        most=int(random.integers(1, 9)),
        limit=float(generated.max() + 500) / float(random.choice([1.0, 1.0, 3.0])),
    )


def fleets(num_gpus: int, degrees: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of `count` degrees that needs at most `num_gpus` GPUs."""
    if count == 0:
        yield ()
        return
    for tp in degrees:
        if tp + count - 1 <= num_gpus:
            for rest in fleets(num_gpus - tp, degrees, count - 1):
                yield (tp, *rest)


def best_contiguous(cost: PlainCost, num_requests: int, degrees: Sequence[int], num_gpus: int) -> float:
    """Least makespan over all fleets, orders of engines and borders."""
    best = float("inf")
    known = {
        (tp, a, b): cost.of(tp, range(a, b))
        for tp in degrees
        for a in range(num_requests)
        for b in range(a + 1, num_requests + 1)
    }
    for count in range(1, min(num_requests, num_gpus) + 1):
        orders = list(fleets(num_gpus, degrees, count))
        for cut in combinations(range(1, num_requests), count - 1):
            borders = [0, *cut, num_requests]
            parts = list(pairwise(borders))
            for order in orders:
                best = min(best, max(known[tp, a, b] for tp, (a, b) in zip(order, parts, strict=True)))
    return best


def best_assignment(cost: PlainCost, num_requests: int, degrees: Sequence[int], num_gpus: int) -> float:
    """Least makespan over all fleets and all assignments, contiguous or not, by dynamic programming over subsets."""
    full = (1 << num_requests) - 1
    members = {mask: [i for i in range(num_requests) if mask >> i & 1] for mask in range(1, full + 1)}
    alone = {tp: [0.0, *(cost.of(tp, members[mask]) for mask in range(1, full + 1))] for tp in degrees}
    best = [[float("inf")] * (full + 1) for _ in range(num_gpus + 1)]
    for row in best:
        row[0] = 0.0
    for gpus in range(1, num_gpus + 1):
        for mask in range(1, full + 1):
            best[gpus][mask] = _best_of(mask, gpus, alone, best)
    return best[num_gpus][full]


def _best_of(mask: int, gpus: int, alone: dict[int, list[float]], best: list[list[float]]) -> float:
    least = best[gpus - 1][mask]
    lowest = mask & -mask
    part = mask
    while part:
        if part & lowest:
            for tp, costs in alone.items():
                if tp <= gpus and costs[part] < least:
                    least = min(least, max(costs[part], best[gpus - tp][mask ^ part]))
        part = (part - 1) & mask
    return least
