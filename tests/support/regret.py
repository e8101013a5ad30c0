"""Cells of the regret study: a workload and a regime, the planner's problem for it, and the simulated truth of any plan.

The truth is `support.event_world` with a trainer and engine coefficients of its own; a plan enters it as GPUs, degrees, engines,
slots and the lengths that each class of engines is meant for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from libra_core.costs.api import EngineLaws, Fit, TrainEstimate, TrainingLoad, TrainingShape
from libra_core.planning.confusion import RouterSkill
from libra_core.planning.example_lengths import LAWS, example_records
from libra_core.planning.lengths import length_table
from libra_core.planning.problem import Cluster, ModelShape, PlanningProblem, Regime
from libra_core.types.forecast import Mode
from libra_core.types.lengths import LengthRecord
from support.event_world import Engines, Pace, World, iteration_s
from support.planning import STUDY, PlainTrainer, costs

GPUS, GROUP, SIMULATED_STEPS, SKIPPED = 48, 16, 16, 6
SIZES = (8, 12, 16, 20, 24, 32, 40)
PARAMETERS, WIDTH_LAYERS, PEAK, STREAMING_LOSS, SWITCH_S = 14.8e9, 40 * 5120, 312e12, 1.05, 15.0
KV_FILL = 0.7
Kind = Literal["strict", "streamed"]
Group = Literal["plain", "age slack 1", "colocated offered", "mixed offered"]


@dataclass(frozen=True, slots=True)
class Cell:
    group: Group
    kind: Kind
    workload: str
    batch: int
    scale: float
    """Of the generated tokens per turn."""
    staleness: int
    slack: int = 0
    router: RouterSkill | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """One plan as the simulation sees it."""

    train_gpus: int
    fleet: tuple[tuple[int, int], ...]
    """`((tp, engines), …)`."""
    colocated: bool = False
    slots: tuple[int, ...] = ()
    """Per class; empty: what `KV_FILL` of the cache holds at the mean context."""
    upto: tuple[float, ...] = ()
    """Generated tokens at the end of each interval of lengths but the last."""
    meant: tuple[int, ...] = (0,)
    """Class of engines that each interval is meant for."""


def train_seconds(total: np.ndarray, gpus: int) -> np.ndarray:
    """The simulation's trainer: 8 FLOP per parameter and token with attention, at an MFU that falls with its size."""
    return (8 * PARAMETERS * total + 8 * WIDTH_LAYERS * total**2) / (gpus * PEAK * (0.42 - 0.0015 * gpus))


@dataclass(frozen=True, slots=True)
class GridTrainer(PlainTrainer):
    """The same law as the simulation's, for layouts of the grid's sizes and of the whole cluster."""

    def shape_fit(self, shape: TrainingShape) -> Fit:
        fits = shape.num_gpus in (*SIZES, GPUS) and shape.cp == 1
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


def records_of(cell: Cell, num: int, seed: int) -> list[LengthRecord]:
    law = LAWS[cell.workload]
    return example_records(replace(law, turn_tokens=law.turn_tokens * cell.scale), num, seed=seed)


def problem_of(cell: Cell, engines: EngineLaws) -> PlanningProblem:
    offered = (Mode.ASYNCHRONOUS, Mode.COLOCATED) if cell.group == "colocated offered" else (Mode.ASYNCHRONOUS,)
    regime = Regime(
        batch=cell.batch,
        group_size=GROUP,
        staleness=cell.staleness,
        age_slack=cell.slack,
        kv_fill=KV_FILL,
        streamed=(cell.kind == "streamed",),
        streamed_loss=STREAMING_LOSS,
        modes=offered,
        colocated_switch_s=SWITCH_S,
    )
    return PlanningProblem(
        cluster=Cluster(num_gpus=GPUS),
        model=ModelShape(num_layers=40),
        regime=regime,
        lengths=length_table(records_of(cell, 2048, seed=1)),
        costs=replace(costs(GridTrainer()), engines=engines),
        router=cell.router,
    )


@dataclass(frozen=True, slots=True)
class Truth:
    """The simulated worlds of one cell; the trainer of `worlds` has one GPU."""

    cell: Cell
    worlds: tuple[World, ...]

    @classmethod
    def of(cls, cell: Cell, seeds: Sequence[int]) -> "Truth":
        return cls(cell, tuple(world_of(cell, seed) for seed in seeds))

    def iteration_s(self, tried: Tried) -> float:
        """Mean over the worlds."""
        return float(np.mean([self._one_s(world, tried, number) for number, world in enumerate(self.worlds)]))

    def _one_s(self, world: World, tried: Tried, number: int) -> float:
        cell, streamed = self.cell, self.cell.kind == "streamed" and not tried.colocated
        pace = Pace(cell.batch, GROUP, cell.staleness, cell.slack, streamed, SIMULATED_STEPS)
        if tried.colocated:
            pace = replace(pace, publication_s=SWITCH_S, colocated=True)
        ratio = float(train_seconds(np.ones(1), tried.train_gpus)[0] / train_seconds(np.ones(1), 1)[0])
        lost = STREAMING_LOSS if streamed else 1.0
        kind = served_by(cell, tried, generated_of(world), np.random.default_rng(number))
        slots = tried.slots or tuple(self._slots(world, tp) for tp, _ in tried.fleet)
        fleet = [engines_of(tp, count, held) for (tp, count), held in zip(tried.fleet, slots, strict=True)]
        return iteration_s(replace(world, train_s=world.train_s * ratio * lost, kind=kind), fleet, pace, skip=SKIPPED)

    def _slots(self, world: World, tp: int) -> int:
        return min(int(KV_FILL * STUDY[tp][4] / mean_context(world)) + 1, (self.cell.staleness + 1) * self.cell.batch)


def engines_of(tp: int, count: int, slots: int) -> Engines:
    a, b, c, prefill, _ = STUDY[tp]
    return Engines(a, b, c, prefill, prefill / 40_000, count, slots)


def served_by(cell: Cell, tried: Tried, generated: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """`[n]` class of engines of each trajectory: its own, or where the router's errors send it."""
    classes = len(tried.fleet)
    right = np.asarray(tried.meant, dtype=np.int64)[np.searchsorted(np.asarray(tried.upto), generated, side="left")]
    if classes == 1 or cell.router is None:
        return right
    upto = np.cumsum(cell.router.confusion(classes), axis=1)[right]
    return np.minimum((random.random(generated.size)[:, None] > upto).sum(axis=1), classes - 1).astype(np.int64)


def generated_of(world: World) -> np.ndarray:
    return np.add.reduceat(world.generated, world.first_turn)


def mean_context(world: World) -> float:
    """Tokens that a decoding sequence holds, over all generated tokens."""
    arriving = np.concatenate([[0.0], world.returned[:-1]])
    arriving[world.first_turn] = world.prompt
    upto = np.cumsum(arriving + world.generated)
    before = np.repeat(upto[world.first_turn] - (arriving + world.generated)[world.first_turn], world.turns)
    return float(world.generated @ (upto - before - world.generated / 2) / world.generated.sum())


def world_of(cell: Cell, seed: int) -> World:
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
        train_s=train_seconds(total, 1),
        kind=np.zeros(num, np.int64),
    )
