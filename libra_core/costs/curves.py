"""A measured kernel as a roofline with a correction table.

`seconds = (launch^p + (flops/(peak·e_c))^p + (bytes/(bandwidth·e_m))^p)^(1/p) · exp(table(log2 coordinates))`

The roofline carries the physics and so extrapolates and scales to another device's peaks; the table, multilinear over a few
knots, carries what was measured (tile quantisation, weak shapes). Outside its knots the table keeps its border value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCurve:
    """One kernel on one device. `table` is flat, in the order of `knots` (last axis fastest)."""

    launch_s: float
    compute_efficiency: float
    memory_efficiency: float
    power: float
    knots: tuple[tuple[float, ...], ...] = ()
    table: tuple[float, ...] = ()
    median_error: float = float("nan")
    """Median absolute relative error on rows held out of the fit."""

    def seconds(self, *, flops: Array | float, moved: Array | float, rates: "Rates", at: Sequence[Array | float]) -> Array:
        """Time of one call, `[n]` for arrays of `n`.

        Args:
            flops: floating point operations of the call.
            moved: bytes it moves through memory or over the link.
            rates: the device's peaks.
            at: one coordinate per axis of `knots`.
        """
        base = self.roofline(flops, moved, rates)
        if not self.knots:
            return base
        weights = multilinear_weights(self.knots, at)
        return base * np.exp(weights @ np.asarray(self.table))

    def roofline(self, flops: Array | float, moved: Array | float, rates: "Rates") -> Array:
        compute = np.asarray(flops, np.float64) / (rates.flops * self.compute_efficiency)
        memory = np.asarray(moved, np.float64) / (rates.bytes_per_s * self.memory_efficiency)
        terms = self.launch_s**self.power + compute**self.power + memory**self.power
        return np.asarray(terms ** (1.0 / self.power), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Peaks a roofline divides by."""

    flops: float
    bytes_per_s: float


def multilinear_weights(knots: Sequence[Sequence[float]], at: Sequence[Array | float]) -> Array:
    """Interpolation weights `[n, product of knot counts]` in log2 coordinates; each row sums to 1."""
    coordinates = np.broadcast_arrays(*[np.atleast_1d(np.asarray(values, np.float64)) for values in at])
    rows = coordinates[0].size
    weights = np.ones((rows, 1))
    for axis, values in zip(knots, coordinates, strict=True):
        hats = _hat_weights(np.log2(np.asarray(axis, np.float64)), np.log2(values.ravel()))
        weights = (weights[:, :, None] * hats[:, None, :]).reshape(rows, -1)
    return weights


def _hat_weights(knots: Array, values: Array) -> Array:
    if any(right <= left for left, right in pairwise(knots.tolist())):
        raise ValueError(f"knots must ascend, got {knots.tolist()}")
    clipped = np.clip(values, knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, clipped, side="right") - 1, 0, len(knots) - 2)
    share = (clipped - knots[left]) / (knots[left + 1] - knots[left])
    weights = np.zeros((values.size, len(knots)))
    rows = np.arange(values.size)
    weights[rows, left] = 1 - share
    weights[rows, left + 1] = share
    return weights
