"""What a validation found."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from libra_core.costs.curves import Array

Values = Sequence[float] | Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Errors of one quantity, relative to the measurement."""

    quantity: str
    rows: int
    median_abs_error: float
    p90_abs_error: float
    median_error: float
    """Signed: positive when the forecast is too long."""
    bound: float | None = None
    """Of `median_abs_error`; None where none was set."""
    note: str = ""

    @property
    def within(self) -> bool | None:
        return None if self.bound is None else self.median_abs_error <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """All figures of one file, and which rows could not be compared."""

    device: str
    file: str
    kind: str
    figures: tuple[Figure, ...]
    comparable: str = ""
    """Which rows count, and why."""
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rows by the reason for which they do not count."""

    def as_json(self) -> dict[str, Any]:
        figures = [{**asdict(figure), "within": figure.within} for figure in self.figures]
        return {**asdict(self), "figures": figures, "within": all(figure.within is not False for figure in self.figures)}


def figure(quantity: str, forecast: Values, measured: Values, bound: float | None = None, note: str = "") -> Figure:
    """Errors of `forecast` against `measured`, `[n]` each, n at least 1."""
    errors = np.asarray(forecast, np.float64) / np.asarray(measured, np.float64) - 1
    return Figure(
        quantity=quantity,
        rows=len(errors),
        median_abs_error=round(float(np.median(np.abs(errors))), 4),
        p90_abs_error=round(float(np.quantile(np.abs(errors), 0.9)), 4),
        median_error=round(float(np.median(errors)), 4),
        bound=bound,
        note=note,
    )
