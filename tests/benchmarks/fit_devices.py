"""Fit the kernel curves of configs/hardware from the measured kernels under LIBRA_DATA, and write them into the YAML files.

    LIBRA_DATA=../shared/data python tests/benchmarks/fit_devices.py [--write] [--only gemm_bf16]

Per curve: roofline parameters by robust regression on log-times, then a ridge-regularised correction table over the knots
below, on four fifths of the shapes; the held-out fifth gives the error that is printed and stored. One CPU minute.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

from libra_core.config.loading import data_folder
from libra_core.costs.curves import KernelCurve, multilinear_weights
from libra_core.costs.facts import DeviceProfile
from libra_core.costs.profiles import load_device
from libra_core.costs.validation.kernel_rows import KernelRows, read_kernels

HARDWARE = Path(__file__).parents[2] / "configs" / "hardware"
FOLDERS = {"a100_sxm_80": "a100_sxm", "h100_sxm_80": "h100_sxm"}
SIZES = [2.0**e for e in (9, 14, 17, 19, 21, 23, 25, 29)]
GEMM_KNOTS = [[1, 16, 64, 256, 1024, 8192], [128, 1024, 4096, 16384], [128, 1024, 4096, 16384]]
KNOTS: dict[str, list[list[float]]] = {
    "gemm_bf16": GEMM_KNOTS,
    "gemm_fp8": GEMM_KNOTS,
    "decode_attention": [
        [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096],
        [16, 64, 256, 1024, 4096, 16384, 65536],
        [1, 2, 4, 8, 16, 64],
    ],
    "prefill_attention": [[1, 16, 128, 1024, 8192], [16, 256, 1024, 4096, 16384]],
    "moe": [[0.0625, 0.25, 1, 4, 16, 64, 512], [96, 384, 1536, 6144], [8, 32, 128]],
    **{name: [SIZES, [2, 4, 8]] for name in ("all_reduce_graph", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")},
}
RIDGE = 0.3


def fit_roofline(rows: KernelRows, device: DeviceProfile) -> KernelCurve:
    """Launch, efficiencies and power by soft-L1 regression of log-times."""
    rates = rows.rates(device)
    bounds = (np.log([5e-7, 0.02, 0.02, 1.0]), np.log([1e-3, 1.2, 1.2, 4.0]))

    def curve(parameters: np.ndarray) -> KernelCurve:
        launch, compute, memory, power = (float(value) for value in np.exp(parameters))
        return KernelCurve(launch_s=launch, compute_efficiency=compute, memory_efficiency=memory, power=power)

    def residuals(parameters: np.ndarray) -> np.ndarray:
        return np.log(curve(parameters).roofline(rows.flops, rows.moved, rates) / rows.measured_s)

    start = np.log([max(6e-7, float(rows.measured_s.min())), 0.7, 0.7, 1.5])
    return curve(least_squares(residuals, start, loss="soft_l1", f_scale=0.1, bounds=bounds).x)


def fit_table(base: KernelCurve, rows: KernelRows, device: DeviceProfile) -> KernelCurve:
    """Ridge regression of what the roofline leaves, over the hat functions of the knots, re-weighted once against outliers."""
    knots = KNOTS[rows.curve]
    weights = multilinear_weights(knots, rows.at)
    rest = np.log(rows.measured_s / base.roofline(rows.flops, rows.moved, rows.rates(device)))
    table, trust = np.zeros(weights.shape[1]), np.ones(len(rest))
    for _ in range(4):
        normal = weights.T @ (weights * trust[:, None]) + RIDGE * np.eye(weights.shape[1])
        table = np.linalg.solve(normal, weights.T @ (trust * rest))
        trust = 1 / np.maximum(np.abs(rest - weights @ table), 0.05)
        trust /= trust.mean()
    return KernelCurve(
        launch_s=base.launch_s,
        compute_efficiency=base.compute_efficiency,
        memory_efficiency=base.memory_efficiency,
        power=base.power,
        knots=tuple(tuple(float(knot) for knot in axis) for axis in knots),
        table=tuple(round(float(value), 4) for value in table),
    )


def errors(curve: KernelCurve, rows: KernelRows, device: DeviceProfile) -> np.ndarray:
    forecast = curve.seconds(flops=rows.flops, moved=rows.moved, rates=rows.rates(device), at=rows.at)
    return np.abs(forecast / rows.measured_s - 1)


def as_yaml(curve: KernelCurve, error: float, source: str) -> dict[str, Any]:
    return {
        "grounding": "measured",
        "source": source,
        "held_out_median_error": round(error, 4),
        "launch_s": float(f"{curve.launch_s:.4g}"),
        "compute_efficiency": round(curve.compute_efficiency, 4),
        "memory_efficiency": round(curve.memory_efficiency, 4),
        "power": round(curve.power, 4),
        "knots": [list(axis) for axis in curve.knots],
        "table": list(curve.table),
    }


def fit_device(name: str, folder: Path, only: str | None) -> dict[str, Any]:
    device = load_device(HARDWARE / f"{name}.yaml")
    fitted: dict[str, Any] = {}
    for rows in read_kernels(folder, device.name.split("-", 1)[0]):
        if only not in (None, rows.curve) or rows.curve not in KNOTS:
            continue
        held_out = rows.held_out()
        train, test = rows.select(~held_out), rows.select(held_out)
        curve = fit_table(fit_roofline(train, device), train, device)
        wrong = errors(curve, test, device)
        fitted[rows.curve] = as_yaml(curve, float(np.median(wrong)), f"aiconfigurator {folder.name} tables (NVIDIA, Apache-2.0)")
        print(json.dumps({
            "device": name, "curve": rows.curve, "rows": len(rows.measured_s), "held_out": int(held_out.sum()),
            "median_error": round(float(np.median(wrong)), 4), "p90_error": round(float(np.quantile(wrong, 0.9)), 4),
            "launch_us": round(curve.launch_s * 1e6, 2), "compute_efficiency": round(curve.compute_efficiency, 3),
            "memory_efficiency": round(curve.memory_efficiency, 3), "power": round(curve.power, 2),
        }))  # fmt: skip
    return fitted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store the curves beside the device files")
    parser.add_argument("--only", help="one curve")
    options = parser.parse_args()
    for name, folder in FOLDERS.items():
        fitted = fit_device(name, data_folder() / "profiles" / "gpu_kernels" / folder, options.only)
        if options.write:
            target = HARDWARE / "curves" / f"{name}.yaml"
            target.parent.mkdir(exist_ok=True)
            kept = yaml.safe_load(target.read_text()) if target.exists() else {}
            target.write_text(yaml.safe_dump({**(kept or {}), **fitted}, sort_keys=True, default_flow_style=None, width=128))


if __name__ == "__main__":
    main()
