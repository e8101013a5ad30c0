"""Kernel tables against the device's curves."""

from pathlib import Path

import numpy as np

from libra_core.costs.facts import DeviceProfile
from libra_core.costs.validation.kernel_rows import KernelRows, read_kernels
from libra_core.costs.validation.report import Figure, ValidationReport, figure

BOUND = 0.08
"""Held-out median over all kernels together."""


def validate_kernels(device: DeviceProfile, folder: Path) -> ValidationReport:
    """Errors per kernel and of all, on the shapes that the fit held out; on all rows for a device whose curves are derived."""
    figures: list[Figure] = []
    forecasts, measurements = [], []
    for rows in read_kernels(folder, device.name.split("-", 1)[0]):
        if rows.curve not in device.curves:
            continue
        judged = _unseen(device, rows)
        curve = device.curves[rows.curve]
        forecast = curve.seconds(flops=judged.flops, moved=judged.moved, rates=judged.rates(device), at=judged.at)
        figures.append(figure(rows.curve, forecast, judged.measured_s, note=device.provenance[rows.curve].grounding))
        forecasts.append(forecast)
        measurements.append(judged.measured_s)
    total = figure("all_kernels", np.concatenate(forecasts), np.concatenate(measurements), BOUND)
    return ValidationReport(
        device=device.name,
        file=str(folder),
        kind="kernels",
        figures=(*figures, total),
        comparable=(
            "rows of this device: BF16 and per-tensor FP8 matrices of at least 128 x 128, BF16 attention with heads of 128 and "
            "no window, BF16 experts with tp and ep up to 8, NCCL and vLLM's graph all-reduce; of a measured curve one shape in "
            "five, never seen by the fit"
        ),
    )


def _unseen(device: DeviceProfile, rows: KernelRows) -> KernelRows:
    if device.provenance[rows.curve].grounding != "measured":
        return rows
    return rows.select(rows.held_out())
