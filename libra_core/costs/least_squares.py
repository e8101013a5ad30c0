"""Small least-squares problems without scipy, so that the planner starts fast."""

from itertools import combinations

import numpy as np

from libra_core.costs.curves import Array


def nonnegative_fit(design: Array, times: Array) -> tuple[list[float], float]:
    """Non-negative coefficients `[p]` that minimise the relative squared error, and their mean absolute relative error.

    Exact for the few columns used here: every subset of columns is solved and the best feasible one kept.

    Args:
        design: `[n, p]`.
        times: `[n]`, positive.
    """
    scaled = design / times[:, None]
    target = np.ones(len(times))
    best: tuple[float, Array] | None = None
    columns = range(design.shape[1])
    for size in range(1, design.shape[1] + 1):
        for chosen in combinations(columns, size):
            solution = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)[0]
            if np.any(solution < 0):
                continue
            loss = float(np.sum((scaled[:, chosen] @ solution - target) ** 2))
            if best is None or loss < best[0]:
                full = np.zeros(design.shape[1])
                full[list(chosen)] = solution
                best = (loss, full)
    assert best is not None, "times and design are positive, so one column alone is feasible"
    error = float(np.mean(np.abs(scaled @ best[1] - 1)))
    return [float(value) for value in best[1]], error
