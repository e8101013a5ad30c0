"""Decode steps of a real engine over batch and context: does the linear law of a step hold, and how well does it forecast?"""

from pathlib import Path

import numpy as np

from libra_core.costs.facts import DeviceProfile
from libra_core.costs.least_squares import nonnegative_fit
from libra_core.costs.validation.report import Figure, ValidationReport, figure
from libra_core.errors import ConfigError
from libra_core.files import CsvRow, csv_rows

BOUND = 0.05


def validate_engine(device: DeviceProfile, file: Path) -> ValidationReport:
    """Fit `a + b·batch + c·context` on all cells but one (batch, context) at a time, forecast that one; CPU milliseconds."""
    groups: dict[tuple[str, str], list[CsvRow]] = {}
    for row in csv_rows(file, "measurements"):
        groups.setdefault((row["model"], row["dtype"]), []).append(row)
    figures = [_left_out_cells(f"decode_step {model} {dtype}", rows) for (model, dtype), rows in groups.items()]
    if not figures:
        raise ConfigError(f"{file} has no row")
    return ValidationReport(
        device=device.name,
        file=str(file),
        kind="engine",
        figures=tuple(figures),
        comparable="all rows; CPU time, for the machine was shared; each cell forecast by the law of the other cells",
    )


def _left_out_cells(name: str, rows: list[CsvRow]) -> Figure:
    cells: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        measured_s = row.number("cpu_ms_median", above_zero=True) / 1e3
        cells.setdefault((row.number("batch"), row.number("total_ctx")), []).append(measured_s)
    at = np.array([[1.0, batch, context] for batch, context in cells])
    measured = np.array([min(times) for times in cells.values()])
    forecast: list[float] = []
    for index in range(len(measured)):
        kept = np.arange(len(measured)) != index
        solution, _ = nonnegative_fit(at[kept], measured[kept])
        forecast.append(float(at[index] @ solution))
    return figure(name, forecast, measured, BOUND, "leave one cell out")
