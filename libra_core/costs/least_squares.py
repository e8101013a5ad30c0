"""Small least-squares problems without scipy, so that the planner starts fast."""

from collections.abc import Callable
from itertools import combinations

import numpy as np

from libra_core.costs.curves import Array

_HUBER = 1.345
"""Residuals beyond this many standard deviations lose weight: 95 % efficient on normal noise (Huber 1981)."""
_SIGMA_PER_MAD = 1.4826
_ROUNDS = 10
_EXACT = 1e-9
"""Relative residuals below this are rounding."""


def robust_fit(design: Array, times: Array) -> tuple[list[float], float]:
    """`nonnegative_fit` under Huber's loss by reweighting: a cell that other work on the host disturbed counts less."""
    weights = np.ones(len(times))
    solution, error = nonnegative_fit(design, times)
    for _ in range(_ROUNDS):
        off = np.abs(design @ np.asarray(solution) / times - 1)
        # By the median: the standard deviation grows with the very cells that are to count less, and would let them pass.
        scale = max(_SIGMA_PER_MAD * float(np.median(off)), _EXACT)
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(off, _EXACT))
        solution, error = nonnegative_fit(design, times, weights)
    return solution, error


def nonnegative_fit(design: Array, times: Array, weights: Array | None = None) -> tuple[list[float], float]:
    """Non-negative coefficients `[p]` that minimise the relative squared error, and their mean absolute relative error.

    Exact for the few columns used here: every subset of columns is solved and the best feasible one kept.

    Args:
        design: `[n, p]`.
        times: `[n]`, positive.
        weights: `[n]`, of the squared errors; 1 when left out.
    """
    # Relative errors: absolute ones would be those of the longest rows, and say little of the short steps that a run consists of.
    scaled = design / times[:, None]
    target = np.ones(len(times))
    emphasis = target if weights is None else np.sqrt(weights)
    best: tuple[float, Array] | None = None
    columns = range(design.shape[1])
    for size in range(1, design.shape[1] + 1):
        for chosen in combinations(columns, size):
            solution = np.linalg.lstsq(scaled[:, chosen] * emphasis[:, None], emphasis, rcond=None)[0]
            if np.any(solution < 0):  # cut to 0 it would be feasible and no optimum: the others have to be solved anew
                continue
            loss = float(np.sum((emphasis * (scaled[:, chosen] @ solution - target)) ** 2))
            if best is None or loss < best[0]:
                full = np.zeros(design.shape[1])
                full[list(chosen)] = solution
                best = (loss, full)
    assert best is not None, "times and design are positive, so one column alone is feasible"
    error = float(np.mean(np.abs(scaled @ best[1] - 1)))
    return [float(value) for value in best[1]], error


def left_out(fit: Callable[[Array, Array], tuple[list[float], float]], design: Array, times: Array) -> Array:
    """Forecast of each row by the law that `fit` finds in the others, `[n]`."""
    forecast = np.empty_like(times)
    for index in range(len(times)):
        others = np.arange(len(times)) != index
        law, _ = fit(design[others], times[others])
        forecast[index] = design[index] @ np.asarray(law)
    return forecast
