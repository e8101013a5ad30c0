"""How much slower the planner's choice is than the best plan of a grid, in an event simulation of its own.

    python tests/benchmarks/plan_regret.py [--cells 500] [--seeds 1] [--first-seed 11] [--group NAME]
        [--costs table|evaluator] [--json]

A cell is a workload, a scale of its lengths, a batch, a staleness and a kind of step. Four groups, each printed for itself:
plain; age slack X = 1; colocated offered beside it; mixed fleets offered, whose router errs as in `ROUTERS`. The grid holds every
plan that the planner may choose: every split and degree, colocated with every degree, and on every split the mixed fleet that the
exact partition makes of its rollout GPUs. `table`: the planner is told the simulation's own coefficients, so the objective alone
is judged; `evaluator`: it uses `libra_core.costs` for A800, so its errors count too.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from libra_core.costs.api import EngineLaws, RolloutCosts, load_device, load_model
from libra_core.planning.confusion import RouterSkill
from libra_core.planning.example_lengths import LAWS
from libra_core.planning.joint_search import evaluate_all, plan_resources
from libra_core.planning.mixed import fleet_classes, interval_cost, planning_requests
from libra_core.planning.placement import fits_nodes
from libra_core.planning.problem import PlanningProblem
from libra_core.planning.rollout_partition import PartitionSolver
from libra_core.types.forecast import Candidate, Mode
from support.planning import STUDY, engines_of
from support.regret import GPUS, SIZES, Cell, Tried, Truth, problem_of

SCALES = ((384, 1.0), (192, 0.5), (384, 2.0))
"""Batch with the scale of the generated tokens per turn."""
ROUTERS = {"good": RouterSkill(accuracy=0.9, tail_recall=0.95), "realistic": RouterSkill(accuracy=0.75, tail_recall=0.7)}
KINDS = ("strict", "streamed")
BOUNDS = {"strict": 0.02, "streamed": 0.04}
GROUPS = ("plain", "age slack 1", "colocated offered", "mixed offered")


def cells() -> Iterator[Cell]:
    for staleness, (batch, scale), workload, kind in product((0, 1, 2, 4), SCALES, LAWS, KINDS):
        at = (workload, batch, scale, staleness)
        yield Cell("plain", kind, *at)
        if staleness < 4:
            yield Cell("age slack 1", kind, *at, slack=1)
            yield Cell("colocated offered", kind, *at)
        if staleness in (1, 2):
            yield from (Cell("mixed offered", kind, *at, router=router) for router in ROUTERS.values())


def homogeneous(asked: PlanningProblem) -> list[Tried]:
    """Every split and degree, and colocated with every degree."""
    _, found = evaluate_all(asked)
    tried = [
        Tried(choice.leaf.layout.num_gpus, ((choice.tp, choice.engines),), colocated=choice.mode is Mode.COLOCATED)
        for choice in found.choices
    ]
    return [item for item in tried if item.colocated or item.train_gpus in SIZES]


def mixed(asked: PlanningProblem) -> list[Tried]:
    """The partition's mixed fleet on every split, with the borders and slots that it would run with."""
    assert asked.router is not None
    requests = planning_requests(asked.lengths, asked.regime)
    engines = asked.costs.engines
    cost = interval_cost(engines, requests, asked.regime)
    solver = PartitionSolver(len(requests), asked.rollout_degrees, cost)
    found: list[Tried] = []
    for size in SIZES:
        partition = solver.solve(GPUS - size)
        degrees = set() if partition is None else {share.tp for share in partition.shares}
        if partition is None or len(degrees) < 2:
            continue
        classes = fleet_classes(partition, asked.lengths, engines, asked.regime, asked.router)
        fleet = tuple((item.tp, item.engines) for item in classes)
        if fits_nodes(asked.cluster, dict(fleet)):
            upto = tuple(float(requests.generated_tokens[share.last]) for share in partition.shares[:-1])
            meant = tuple([tp for tp, _ in fleet].index(share.tp) for share in partition.shares)
            found.append(Tried(size, fleet, slots=tuple(item.engine.slots for item in classes), upto=upto, meant=meant))
    return found


def key_of(tried: Tried) -> tuple[object, ...]:
    return tried.colocated, tried.train_gpus, tuple(sorted(tried.fleet))


def key_of_plan(candidate: Candidate) -> tuple[object, ...]:
    return candidate.mode is Mode.COLOCATED, candidate.plan.train.num_gpus, candidate.plan.rollout.engines


def score(cell: Cell, engines: EngineLaws, seeds: range) -> dict[str, object]:
    asked = problem_of(cell, engines)
    truth = Truth.of(cell, seeds)
    grid = homogeneous(asked) + (mixed(asked) if cell.router else [])
    times = {key_of(tried): truth.iteration_s(tried) for tried in grid}
    found = plan_resources(asked).best
    chosen, best = key_of_plan(found), min(times, key=lambda key: times[key])
    return {
        "group": cell.group,
        "kind": cell.kind,
        "workload": cell.workload,
        "scale": cell.scale,
        "batch": cell.batch,
        "staleness": cell.staleness,
        "router": next((name for name, skill in ROUTERS.items() if skill is cell.router), None),
        "chosen": chosen,
        "best": best,
        "binding": found.forecast.terms.binding.value,
        "regret": round(times[chosen] / times[best] - 1, 4),
        "forecast_error": round(found.forecast.t_iter_s / times[chosen] - 1, 4),
        "plans": len(grid),
        "times": {str(key): round(value, 1) for key, value in times.items()},
    }


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    regret = np.array([row["regret"] for row in rows], dtype=float)
    error = np.array([row["forecast_error"] for row in rows], dtype=float)
    return {
        "cells": int(regret.size),
        "mean_regret": round(float(regret.mean()), 4),
        "p90_regret": round(float(np.quantile(regret, 0.9)), 4),
        "worst_regret": round(float(regret.max()), 4),
        "mean_forecast_error": round(float(error.mean()), 4),
        "mean_absolute_forecast_error": round(float(np.abs(error).mean()), 4),
    }


def summaries(rows: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    """One entry a group and kind, and both kinds over all groups."""
    found: dict[str, dict[str, object]] = {}
    for group, kind in product((*GROUPS, "all"), KINDS):
        chosen = [row for row in rows if row["kind"] == kind and group in (row["group"], "all")]
        if chosen:
            found[f"{group}, {kind}"] = summary(chosen) | {"bound": BOUNDS[kind]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=500, help="at most so many, evenly over the list")
    parser.add_argument("--seeds", type=int, default=1, help="a plan's time is the mean over so many")
    parser.add_argument("--first-seed", type=int, default=11)
    parser.add_argument("--group", choices=GROUPS, help="only this group")
    parser.add_argument("--costs", choices=("table", "evaluator"), default="table")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    engines = engines_of(STUDY)
    if arguments.costs == "evaluator":
        engines = RolloutCosts(load_device("a800_sxm_80"), load_model("qwen3_14b")).laws()
    every = [cell for cell in cells() if arguments.group in (None, cell.group)]
    chosen = [every[index] for index in np.unique(np.linspace(0, len(every) - 1, min(arguments.cells, len(every))).astype(int))]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    rows = []
    for number, cell in enumerate(chosen):
        started = time.time()
        rows.append(score(cell, engines, seeds))
        told = {name: value for name, value in rows[-1].items() if name != "times"}
        print(f"{number + 1}/{len(chosen)} {time.time() - started:.1f} s {told}", file=sys.stderr)
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    found = {"costs": arguments.costs, "seeds": [*seeds], "groups": summaries(rows), "machine": machine}
    print(json.dumps(found | {"rows": rows}) if arguments.json else json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
