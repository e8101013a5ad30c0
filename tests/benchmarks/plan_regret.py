"""How much slower the planner's choice is than the best plan of a grid, in an event simulation of its own.

    python tests/benchmarks/plan_regret.py [--cells 72] [--seeds 1] [--costs table|evaluator] [--json]

A cell is a workload, a scale of its lengths, a batch, a staleness and a kind of step. The grid holds every split and degree that
the planner may choose. `table`: the planner is told the simulation's own coefficients, so the objective alone is judged;
`evaluator`: it uses `libra_core.costs` for A800, so its errors count too.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from libra_core.costs.api import Fit, RolloutCosts, TrainEstimate, TrainingLoad, TrainingShape, load_device, load_model
from libra_core.planning.candidates import Choice
from libra_core.planning.example_lengths import LAWS, example_records
from libra_core.planning.joint_search import Evaluated, evaluate_all
from libra_core.planning.lengths import length_table
from libra_core.planning.problem import Cluster, Costs, EngineCosts, ModelShape, PlanningProblem, Regime
from libra_core.types.forecast import Mode
from libra_core.types.lengths import LengthRecord
from support.event_world import Fleet, Pace, World, iteration_s
from support.planning import STUDY, ConstantMoving, PlainTrainer, TableEngines

GPUS, GROUP, SIMULATED_STEPS, SKIPPED = 48, 16, 16, 6
SIZES = (8, 12, 16, 20, 24, 32, 40)
PARAMETERS, WIDTH_LAYERS, PEAK, STREAMING_LOSS = 14.8e9, 40 * 5120, 312e12, 1.05


def train_seconds(total: np.ndarray, gpus: int) -> np.ndarray:
    """The simulation's trainer: 8 FLOP per parameter and token with attention, at an MFU that falls with its size."""
    return (8 * PARAMETERS * total + 8 * WIDTH_LAYERS * total**2) / (gpus * PEAK * (0.42 - 0.0015 * gpus))


@dataclass(frozen=True, slots=True)
class GridTrainer(PlainTrainer):
    """The same law as the simulation's, for layouts of the grid's sizes."""

    def shape_fit(self, shape: TrainingShape) -> Fit:
        fits = shape.num_gpus in SIZES and shape.cp == 1
        return Fit(fits=fits, reason="" if fits else f"{shape.num_gpus} GPUs are not in the grid")

    def estimate(self, shape: TrainingShape, load: TrainingLoad) -> TrainEstimate:
        one = PlainTrainer.estimate(self, replace(shape, tp=1, pp=1, dp=shape.num_gpus), load)
        mean = load.tokens / load.num_sequences
        spread = load.squared_tokens / load.num_sequences / mean**2
        seconds = load.num_sequences * float(_mean_seconds(mean, spread, shape.num_gpus)) + self.fixed_s
        return replace(one, t_train_s=seconds, bubble_share=0.0, tp_share=0.0, fit=Fit(fits=True))


def _mean_seconds(mean: float, spread: float, gpus: int) -> float:
    linear = train_seconds(np.array([mean]), gpus)[0]
    flat = 8 * WIDTH_LAYERS * mean**2 / (gpus * PEAK * (0.42 - 0.0015 * gpus))
    return linear + (spread - 1) * flat


@dataclass(frozen=True, slots=True)
class Cell:
    workload: str
    scale: float
    batch: int
    staleness: int
    streamed: bool


SCALES = ((384, 1.0), (192, 0.5), (384, 2.0))
"""Batch with the scale of the generated tokens per turn."""


def cells() -> Iterator[Cell]:
    for staleness, (batch, scale), workload, streamed in product((0, 1, 2, 4), SCALES, LAWS, (False, True)):
        yield Cell(workload, scale, batch, staleness, streamed)


def records_of(cell: Cell, num: int, seed: int) -> list[LengthRecord]:
    law = LAWS[cell.workload]
    return example_records(replace(law, turn_tokens=law.turn_tokens * cell.scale), num, seed=seed)


def problem_of(cell: Cell, engines: EngineCosts) -> PlanningProblem:
    regime = Regime(
        batch=cell.batch,
        group_size=GROUP,
        staleness=cell.staleness,
        streamed=(cell.streamed,),
        streamed_loss=STREAMING_LOSS,
        modes=(Mode.ASYNCHRONOUS,),
    )
    return PlanningProblem(
        cluster=Cluster(num_gpus=GPUS),
        model=ModelShape(num_layers=40),
        regime=regime,
        lengths=length_table(records_of(cell, 2048, seed=1)),
        costs=Costs(engines=engines, trainer=GridTrainer(), moving=ConstantMoving()),
    )


def world_of(cell: Cell, gpus: int, seed: int) -> World:
    num = cell.batch * (SIMULATED_STEPS + cell.staleness + 1)
    records = records_of(cell, num, seed)
    turns = np.array([len(item.generated_tokens) for item in records])
    waits = [((*item.tool_tokens, 0), (*item.tool_s, 0.0)) for item in records]
    total = np.array([item.prompt_tokens + sum(item.generated_tokens) + sum(item.tool_tokens) for item in records], dtype=float)
    return World(
        prompt=np.array([item.prompt_tokens for item in records], dtype=float),
        first_turn=np.cumsum(turns) - turns,
        turns=turns,
        generated=np.array([tokens for item in records for tokens in item.generated_tokens], dtype=float),
        returned=np.array([tokens for tokens, _ in waits for tokens in tokens], dtype=float),
        tool_s=np.array([seconds for _, seconds in waits for seconds in seconds], dtype=float),
        train_s=train_seconds(total, gpus) * (STREAMING_LOSS if cell.streamed else 1.0),
    )


def simulated_s(cell: Cell, choice: Choice, worlds: dict[int, World], context: float) -> float:
    """Mean over the seeds of `worlds`, whose trainer has one GPU."""
    a, b, c, prefill, kv = STUDY[choice.tp]
    slots = min(int(0.7 * kv / context) + 1, (cell.staleness + 1) * cell.batch)
    fleet = Fleet(a, b, c, prefill, prefill / 40_000, choice.engines, slots)
    pace = Pace(cell.batch, GROUP, cell.staleness, 0, cell.streamed, SIMULATED_STEPS)
    size = choice.leaf.layout.num_gpus
    rate = float(train_seconds(np.ones(1), size)[0] / train_seconds(np.ones(1), 1)[0])
    scaled = [replace(world, train_s=world.train_s * rate) for world in worlds.values()]
    return float(np.mean([iteration_s(world, fleet, pace, skip=SKIPPED) for world in scaled]))


def score(cell: Cell, engines: EngineCosts, seeds: int) -> dict[str, object]:
    asked = problem_of(cell, engines)
    _, found = evaluate_all(asked)
    chosen = found.ranked(None)[0]
    worlds = {seed: world_of(cell, 1, seed) for seed in range(11, 11 + seeds)}
    times = [simulated_s(cell, choice, worlds, asked.lengths.mean_context) for choice in found.choices]
    return _row(cell, found, chosen, times)


def _row(cell: Cell, found: Evaluated, chosen: int, times: list[float]) -> dict[str, object]:
    best = int(np.argmin(times))
    choice, truth = found.choices[chosen], found.choices[best]
    error = 1.06 * float(found.solution.t_iter_s[chosen]) / times[chosen] - 1
    return {
        "workload": cell.workload,
        "scale": cell.scale,
        "batch": cell.batch,
        "staleness": cell.staleness,
        "kind": "streamed" if cell.streamed else "strict",
        "chosen": [choice.leaf.layout.num_gpus, choice.tp, choice.engines],
        "best": [truth.leaf.layout.num_gpus, truth.tp, truth.engines],
        "regret": round(times[chosen] / times[best] - 1, 4),
        "forecast_error": round(error, 4),
        "plans": len(times),
    }


def summary(rows: list[dict[str, object]], kind: str) -> dict[str, object]:
    regret = np.array([row["regret"] for row in rows if row["kind"] == kind], dtype=float)
    error = np.array([row["forecast_error"] for row in rows if row["kind"] == kind], dtype=float)
    if regret.size == 0:
        return {"cells": 0}
    return {
        "cells": int(regret.size),
        "mean_regret": round(float(regret.mean()), 4),
        "p90_regret": round(float(np.quantile(regret, 0.9)), 4),
        "worst_regret": round(float(regret.max()), 4),
        "mean_forecast_error": round(float(error.mean()), 4),
        "mean_absolute_forecast_error": round(float(np.abs(error).mean()), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=72)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--costs", choices=("table", "evaluator"), default="table")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    engines: EngineCosts = TableEngines(STUDY)
    if arguments.costs == "evaluator":
        engines = RolloutCosts(load_device("a800_sxm_80"), load_model("qwen3_14b"))
    every = list(cells())
    chosen = [every[index] for index in np.unique(np.linspace(0, len(every) - 1, min(arguments.cells, len(every))).astype(int))]
    rows = []
    for number, cell in enumerate(chosen):
        started = time.time()
        rows.append(score(cell, engines, arguments.seeds))
        print(f"{number + 1}/{len(chosen)} {time.time() - started:.1f} s {rows[-1]}", file=sys.stderr)
    found = {
        "costs": arguments.costs,
        "strict": summary(rows, "strict"),
        "streamed": summary(rows, "streamed"),
        "rows": rows,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(
        json.dumps(found)
        if arguments.json
        else json.dumps({name: found[name] for name in ("costs", "strict", "streamed")}, indent=2)
    )


if __name__ == "__main__":
    main()
