"""Seconds per iteration at η = 1: strict against streamed, streamed + X = 1 and colocated; real trainer, real engine.

    python tests/benchmarks/iteration.py [--json] [--repetitions 1] [--iterations 12] [--warm-up 3] [--variants strict,streamed]

The last line of stdout is one JSON object; everything else goes to stderr. One workload for all variants, with a long tail of
turns and of tool waits, so that waiting and not the two cores limits the iteration. Paired by seed: the same prompts, with the
same slow tools; how many turns each trajectory takes is drawn anew (vLLM cannot seed single requests on CPU). Nothing but the
three knobs under test differs, and the learning rate is close to nothing, so that the policy stays the same while the trainer
does all its work. A ratio is the mean T_iter of strict over that of the variant, the warm-up iterations left out; repetitions
use other seeds and another order of the variants. On a machine that others use too, look at `load` and `trainer_busy_s` before
comparing.
"""

import argparse
import json
import logging
import os
import platform
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from libra_core import assembly
from libra_core.config import LibraConfig
from libra_core.config.loading import process_environment, validate_config
from libra_core.runtime.driver.session import SessionClients
from libra_core.types.reports import IterationReport

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "strict": {"training": {"streamed": False}, "rollout": {"age_slack": 0}},
    "streamed": {"training": {"streamed": True}, "rollout": {"age_slack": 0}},
    "streamed_x1": {"training": {"streamed": True}, "rollout": {"age_slack": 1}},
    "colocated": {"training": {"streamed": False}, "rollout": {"mode": "colocated", "age_slack": 0}},
}
WORKLOAD: dict[str, dict[str, Any]] = {
    "workload": {
        "kind": "synthetic",
        "prompt_tokens": 384,
        "turn_tokens": 4.0,
        "turns": 5.0,
        "tool_tokens": 8,
        "tool_wait_s": 0.25,
        "tool_wait_sigma": 0.7,
        "tool_wait_prompt_share": 0.2,
    },
    "rollout": {
        "staleness": 1,
        "groups_per_step": 8,
        "group_size": 4,
        "max_turns": 40,
        "max_new_tokens": 256,
        "max_context_tokens": 1024,
        "max_num_seqs": 64,
        "tool_threads": 128,
        "batch_deadline_s": 240.0,
    },
    "model": {"tiny": {"max_positions": 1088}},
    "training": {"optimizer": {"learning_rate": 1e-7}},
    "tracking": {"mlflow_uri": "off"},
    "backend": {"min_free_memory_gib": 3.0},
}
TRAINER_PARTS = ("busy", "waits_groups", "waits_age", "waits_publication", "other")
FLEET_PARTS = ("busy", "reprefill", "paused", "starved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One variant with one seed."""

    variant: str
    seed: int
    reports: tuple[IterationReport, ...]
    """Warm-up left out."""
    load: float
    """Mean load of the machine meanwhile; about 2 to 3 when this benchmark is alone on it."""


def main() -> None:
    options = _options()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    names = options.variants.split(",")
    with tempfile.TemporaryDirectory(prefix="libra-iteration-") as folder:
        process_environment(Path(folder))
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would let anything else on the machine starve them
        runs = [
            measure(name, seed, Path(folder), options)
            for seed in range(options.repetitions)
            for name in (names if seed % 2 == 0 else names[::-1])
        ]
    print(json.dumps(summary(runs, options)))


def measure(variant: str, seed: int, root: Path, options: argparse.Namespace) -> Run:
    steps = options.warm_up + options.iterations
    config = config_of(variant, seed, root, steps)
    run_dir = root / f"{variant}-{seed}"
    run_dir.mkdir()
    _say(f"{variant}, seed {seed}: starting (load {os.getloadavg()[0]:.1f})")
    reference = assembly.open_session(config, run_dir, lambda _what, _share: None)
    try:
        connection = assembly.connect(reference)
        reports: list[IterationReport] = []
        loads: list[float] = []
        for step in range(steps):
            reports.append(_iterate(connection, step))
            loads.append(os.getloadavg()[0])
    finally:
        assembly.close_session(reference)
    run = Run(variant=variant, seed=seed, reports=tuple(reports[options.warm_up :]), load=round(fmean(loads), 1))
    _say_account(run)
    return run


def config_of(variant: str, seed: int, root: Path, steps: int) -> LibraConfig:
    values: dict[str, dict[str, Any]] = {name: dict(section) for name, section in WORKLOAD.items()}
    for name, section in {**VARIANTS[variant], "run": {"root": str(root)}}.items():
        values[name] = {**values.get(name, {}), **section}
    for name, section in VARIANTS[variant].items():
        values[name] |= section
    values["training"]["steps"] = steps + 4  # admission stops with the run: the measured steps keep their look-ahead
    return validate_config({"seed": seed, **values})


def _iterate(connection: SessionClients, step: int) -> IterationReport:
    rollout = connection.rollout.take_batch(step)
    reward = connection.reward.score(rollout.batch_id)
    update = connection.trainer.update(rollout.batch_id, rollout.policy_version)
    publication = connection.rollout.publish(update.policy_version)
    return connection.rollout.iteration_report(step, rollout, reward, update, publication)


def summary(runs: list[Run], options: argparse.Namespace) -> dict[str, Any]:
    names = sorted({run.variant for run in runs}, key=list(VARIANTS).index)
    reports = {name: [report for run in runs if run.variant == name for report in run.reports] for name in names}
    mean_s = {name: fmean(report.t_iter_s for report in reports[name]) for name in names}
    ratios = {f"ratio_{name}": round(mean_s["strict"] / mean_s[name], 3) for name in names if name != "strict"}
    return {
        "benchmark": "iteration",
        "machine": f"{platform.machine()}, {psutil.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "staleness": 1,
        "repetitions": options.repetitions,
        "iterations": options.iterations,
        **ratios,
        "parts_add_up_max_error": max(parts_error(report) for name in names for report in reports[name]),
        "ratios_by_repetition": _by_repetition(runs),
        "load": {f"{run.variant}-{run.seed}": run.load for run in runs},
        "variants": {name: _decomposition(reports[name]) for name in names},
    }


def _by_repetition(runs: list[Run]) -> dict[str, list[float]]:
    mean_s = {(run.variant, run.seed): fmean(report.t_iter_s for report in run.reports) for run in runs}
    ratios: dict[str, list[float]] = {}
    for (name, seed), value in sorted(mean_s.items(), key=lambda item: item[0][1]):
        if name != "strict":
            ratios.setdefault(name, []).append(round(mean_s["strict", seed] / value, 3))
    return ratios


def parts_error(report: IterationReport) -> float:
    """Share of T_iter that the trainer's parts, or the fleet's, miss it by. What one part claims too much, another, computed as
    the rest, shows as negative time: that counts too."""
    breakdown = asdict(report.breakdown)
    errors_s = [0.0]
    for side, names in (("trainer", TRAINER_PARTS), ("fleet", FLEET_PARTS)):
        parts = [breakdown[f"{side}_{name}_s"] for name in names]
        errors_s += [abs(sum(parts) - report.t_iter_s), -min(parts)]
    return round(max(errors_s) / report.t_iter_s, 6)


def _decomposition(reports: list[IterationReport]) -> dict[str, float]:
    breakdowns = [asdict(report.breakdown) for report in reports]
    facts = {
        "t_iter_s": fmean(report.t_iter_s for report in reports),
        "staleness_mean": fmean(report.rollout.staleness_mean for report in reports),
        "staleness_max": max(report.rollout.staleness_max for report in reports),
        "batch_generation_s": fmean(report.rollout.generation_s for report in reports),
        "train_tokens": fmean(report.update.tokens for report in reports),
        "generated_tokens": fmean(report.rollout.generated_tokens for report in reports),
        "mean_turns": fmean(report.rollout.mean_turns for report in reports),
        "preemptions": sum(report.preemptions for report in reports),
        "reprefilled_tokens": fmean(report.rollout.reprefilled_tokens for report in reports),
        "queued": fmean(report.queued for report in reports),
    }
    facts |= {name: fmean(breakdown[name] for breakdown in breakdowns) for name in breakdowns[0]}
    return {name: round(value, 4) for name, value in facts.items()}


def _say_account(run: Run) -> None:
    facts = _decomposition(list(run.reports))
    _say(
        f"{run.variant}, seed {run.seed}: T_iter {facts.pop('t_iter_s'):.2f} s over {len(run.reports)} iterations, "
        f"load {run.load}"
    )
    _say("   " + "  ".join(f"{name} {value:.2f}" for name, value in facts.items()))
    _say("   T_iter of each: " + " ".join(f"{report.t_iter_s:.1f}" for report in run.reports))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="kept for uniformity: the JSON line is always printed")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
