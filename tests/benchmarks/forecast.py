"""Forecast against the real engine: a batch of 64 trajectories with spread lengths, after a calibration of this host.

    python tests/benchmarks/forecast.py [--json] [--quick]

The law of a step is measured on equal sequences (batch x context) and must then forecast the makespan of 64 sequences of
lognormal lengths that start together. Both in CPU seconds of the engine's process, and medians of several visits: the host may
be busy with other work.
"""

import argparse
import json
import platform
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np

from libra_core.costs.intervals import EngineLimits, RequestTable
from libra_core.engines.calibration.calibrate import QUICK, SHAPE, Grid, calibration_spec, measure
from libra_core.engines.calibration.meter import EngineMeter
from libra_core.engines.verification.engine_model import build_engine_model

TRAJECTORIES = 64


def spread_lengths(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts `[64]` of 40-400 tokens and generated lengths `[64]`, lognormal with the longest about eight times the median."""
    rng = np.random.default_rng(seed)
    generated = np.clip(rng.lognormal(4.6, 0.9, TRAJECTORIES), 8, 1500).astype(int)
    return rng.integers(40, 400, TRAJECTORIES), generated


def run_batch(meter: EngineMeter, prompts: np.ndarray, generated: np.ndarray) -> float:
    """Seconds of one real batch."""
    return meter.seconds([(meter.prompt(int(p)), int(g)) for p, g in zip(prompts, generated, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--quick", action="store_true", help="coarser grid")
    parser.add_argument("--batches", type=int, default=3, help="real batches to forecast")
    parser.add_argument("--visits", type=int, default=3, help="runs of each batch, with fresh prompts of equal lengths")
    options = parser.parse_args()
    grid = QUICK if options.quick else Grid(degrees=(1,))
    say = (lambda text: None) if options.json else print
    with tempfile.TemporaryDirectory(prefix="libra-forecast-") as temporary:
        folder = build_engine_model(Path(temporary) / "model", seed=0, shape=SHAPE)
        meter = EngineMeter(calibration_spec(folder, 1), vocab_size=SHAPE.vocab_size, log=folder.parent / "engine.log")
        with closing(meter):
            fit = measure(meter, 1, grid, say)
            law = fit.law
            limits = EngineLimits(kv_tokens=law.kv_tokens, max_num_seqs=TRAJECTORIES)
            lengths = [spread_lengths(seed) for seed in range(options.batches)]
            visits = [[run_batch(meter, *pair) for pair in lengths] for _ in range(options.visits)]
    rows = []
    for seed, ((prompts, generated), seconds) in enumerate(zip(lengths, zip(*visits, strict=True), strict=True)):
        forecast = RequestTable(prompts, generated).makespan_s(0, TRAJECTORIES - 1, law, limits)
        rows.append(
            {"seed": seed, "forecast_s": forecast, "measured_s": median(seconds), "error": forecast / median(seconds) - 1,
             "visits_s": seconds, "longest": int(generated.max()), "generated": int(generated.sum())}
        )  # fmt: skip
    errors = [abs(row["error"]) for row in rows]
    result = {
        "machine": platform.processor() or platform.machine(),
        "clock": "CPU seconds of the engine process",
        "decode_held_out_median_error": fit.held_out_median_error,
        "decode_cells": fit.num_cells,
        "makespan_worst_error": max(errors),
        "makespan_median_error": float(np.median(errors)),
        "rows": rows,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
