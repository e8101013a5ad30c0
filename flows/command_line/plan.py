"""`libra plan`: load, solve, show. Imports neither Ray nor torch."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from flows.views.plan_view import explanation, forecast_table, node_map, runner_up_table, verdict_lines
from libra_core.config import load_config
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.loading import LoadedProblem, load_problem
from libra_core.types.forecast import Candidate, PlanReport


def run_plan(
    config_path: Path, overrides: list[str], *, history: Path | None = None, as_json: bool = False, explain: bool = False
) -> None:
    """Raises `LibraError` when the configuration is wrong or nothing is feasible."""
    config = load_config(config_path, overrides)
    loaded = load_problem(config, history)
    started = time.perf_counter()
    report = plan_resources(loaded.problem)
    solve_s = time.perf_counter() - started
    with json_output(as_json) as emit:
        if not as_json:
            _show(terminal(), report, loaded, solve_s, explain=explain)
        emit(plan_json(report, loaded, solve_s))


def plan_json(report: PlanReport, loaded: LoadedProblem, solve_s: float) -> dict[str, Any]:
    """Everything that the table says, in plain values."""
    return {
        "best": _candidate_json(report.best),
        "runner_ups": [_candidate_json(item) for item in report.runner_ups],
        "binding": report.best.forecast.terms.binding.value,
        "relaxations": [asdict(item) for item in report.relaxations],
        "placement": [asdict(item) for item in report.placement],
        "pruned": [asdict(item) for item in report.pruned],
        "notes": list(report.notes),
        "runnable": not report.against,
        "device": loaded.device.name,
        "model": loaded.model.name,
        "lengths": loaded.lengths_source,
        "grounding": str(loaded.device.grounding),
        "engine_costs": loaded.costs.engine_grounding(report.best.plan),
        "trainer_costs": loaded.costs.trainer_grounding(report.best.plan),
        "num_gpus": loaded.problem.cluster.num_gpus,
        "num_candidates": report.num_candidates,
        "solve_s": round(solve_s, 4),
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    plan, rollout = candidate.plan, candidate.plan.rollout
    return {
        "mode": candidate.mode.value,
        "streamed": candidate.streamed,
        "num_gpus": candidate.num_gpus,
        "train": asdict(plan.train) | {"num_gpus": plan.train.num_gpus},
        "rollout": {"engines": {str(tp): count for tp, count in rollout.engines}, "num_gpus": rollout.num_gpus},
        "hybrid_replicas": plan.hybrid_replicas,
        "slots_per_engine": {str(tp): slots for tp, slots in candidate.slots_per_engine},
        "forecast": asdict(candidate.forecast) | {"binding": candidate.forecast.terms.binding.value},
    }


def _show(console: Console, report: PlanReport, loaded: LoadedProblem, solve_s: float, *, explain: bool) -> None:
    console.print(forecast_table(report, loaded))
    console.print(node_map(report, loaded.problem.cluster))
    console.print(runner_up_table(report))
    lines = verdict_lines(report, loaded, solve_s)
    console.print(*lines, sep="\n", highlight=False, soft_wrap=True)
    if explain:
        console.print(*explanation(report), sep="\n", highlight=False, soft_wrap=True)
