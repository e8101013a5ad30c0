"""Candidates with homogeneous fleets as columns of numbers, and back to plans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from libra_core.costs.api import TrainingLoad
from libra_core.planning.latency import LatencyCurve, LoadedEngine, latency_curve, loaded_engine
from libra_core.planning.objective import Options, Solution
from libra_core.planning.placement import most_engines
from libra_core.planning.problem import ModelShape, PlanningProblem
from libra_core.planning.training_tree import Cuts, TrainLeaf, best_leaves, shape_in
from libra_core.types.forecast import Candidate, Forecast, Mode
from libra_core.types.plan import Plan, RolloutLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchInputs:
    """What all candidates of one problem share."""

    problem: PlanningProblem
    load: TrainingLoad
    curves: Mapping[int, LatencyCurve]
    """Of the degrees that fit, ascending."""


def search_inputs(problem: PlanningProblem, cuts: Cuts) -> SearchInputs:
    """Tabulate the degrees that fit; `cuts` says why others do not."""
    lengths = problem.lengths
    curves: dict[int, LatencyCurve] = {}
    for tp in sorted(problem.rollout_degrees):
        why = _against_degree(problem, tp)
        if why:
            cuts.add("engine fits", f"engine tp {tp}", why)
            continue
        curves[tp] = latency_curve(loaded_engine(problem.costs.engines, tp, lengths, problem.regime), lengths, problem.regime)
    load = problem.lengths.training_load(problem.regime.batch, problem.regime.longest_tokens)
    return SearchInputs(problem=problem, load=load, curves=curves)


def _against_degree(problem: PlanningProblem, tp: int) -> str:
    if problem.cluster.groups_of(tp) == 0:
        return f"no node has {tp} GPUs"
    if why := problem.costs.engines.why_not(tp):
        return why
    room = problem.costs.engines[tp].kv_tokens
    longest = problem.regime.longest_tokens
    return f"KV cache of {room:,} tokens, but a trajectory may have {longest:,}" if room < longest else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """`{GPUs: fastest layout on exactly so many}` of every size of training that has one, up to the whole cluster."""

    run: dict[int, TrainLeaf]
    refused: dict[int, TrainLeaf]
    """Where a layout that sessions refuse is faster."""

    def __bool__(self) -> bool:
        return bool(self.run or self.refused)

    @property
    def least_gpus(self) -> int:
        return min((*self.run, *self.refused))


def train_leaves(inputs: SearchInputs, cuts: Cuts) -> Leaves:
    """Of the bench's problem."""
    sizes = range(1, inputs.problem.cluster.num_gpus + 1)
    leaves = {size: best_leaves(inputs.problem, size, inputs.load, cuts) for size in sizes}
    return Leaves(
        run={size: leaf for size, (leaf, _) in leaves.items() if leaf is not None},
        refused={size: leaf for size, (_, leaf) in leaves.items() if leaf is not None},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One column of `Options` in words."""

    leaf: TrainLeaf
    tp: int
    engines: int
    streamed: bool
    mode: Mode
    publication_s: float

    @property
    def plan(self) -> Plan:
        return Plan(train=self.leaf.layout, rollout=RolloutLayout(engines=((self.tp, self.engines),)))


def choices_of(inputs: SearchInputs, leaves: Mapping[int, TrainLeaf]) -> list[Choice]:
    """Every split, degree and kind of step, with as many engines as fit beside the trainer."""
    problem = inputs.problem
    choices: list[Choice] = []
    if Mode.ASYNCHRONOUS in problem.regime.modes:
        for leaf in leaves.values():
            for tp in inputs.curves:
                engines = most_engines(problem.cluster, leaf.layout, tp)
                choices += _side_by_side(inputs, leaf, tp, engines) if engines else []
    if Mode.COLOCATED in problem.regime.modes and leaves:
        leaf = min(leaves.values(), key=lambda leaf: (leaf.t_train_s, leaf.layout.num_gpus))
        choices += [_in_turns(inputs, leaf, tp) for tp in inputs.curves]
    return choices


def _side_by_side(inputs: SearchInputs, leaf: TrainLeaf, tp: int, engines: int) -> list[Choice]:
    publication = inputs.problem.costs.publication_s(shape_in(inputs.problem.train_shape, leaf.layout), {tp: engines})
    return [
        Choice(leaf=leaf, tp=tp, engines=engines, streamed=streamed, mode=Mode.ASYNCHRONOUS, publication_s=publication)
        for streamed in inputs.problem.regime.streamed
    ]


def _in_turns(inputs: SearchInputs, leaf: TrainLeaf, tp: int) -> Choice:
    engines = inputs.problem.cluster.groups_of(tp)
    return Choice(leaf=leaf, tp=tp, engines=engines, streamed=False, mode=Mode.COLOCATED, publication_s=0.0)


def options_of(choices: Sequence[Choice]) -> Options:
    """The choices as columns."""
    return Options(
        fleet=np.array([item.tp for item in choices], dtype=np.int64),
        engines=np.array([item.engines for item in choices], dtype=np.float64),
        train_s=np.array([item.leaf.t_train_s for item in choices]),
        train_fixed_s=np.array([item.leaf.fixed_s for item in choices]),
        publication_s=np.array([item.publication_s for item in choices]),
        streamed=np.array([item.streamed for item in choices], dtype=np.bool_),
        colocated=np.array([item.mode is Mode.COLOCATED for item in choices], dtype=np.bool_),
    )


def candidate_of(inputs: SearchInputs, choice: Choice, solution: Solution, row: int) -> Candidate:
    """A row of the solution as a plan with its forecast."""
    return candidate_on(inputs, choice, choice.plan.rollout, [inputs.curves[choice.tp].engine], solution, row)


def candidate_on(
    inputs: SearchInputs,
    choice: Choice,
    rollout: RolloutLayout,
    engines: Sequence[LoadedEngine],
    solution: Solution,
    row: int = 0,
) -> Candidate:
    """As `candidate_of`, with these engines in place of the choice's; `engines` has one of each degree."""
    t_iter, problem = float(solution.forecast_s[row]), inputs.problem
    colocated_s = float(solution.trainer_s[row]) if choice.mode is Mode.COLOCATED else 0.0
    forecast = Forecast(
        t_iter_s=t_iter,
        t_train_s=float(solution.train_s[row]),
        t_rollout_s=float(solution.fleet_s[row]) - colocated_s,
        slowest_trajectory_s=float(solution.latency_s[row]),
        tokens_per_s=problem.regime.batch * problem.lengths.mean(problem.lengths.generated_tokens) / t_iter,
        terms=solution.terms(row),
        publication_s=choice.publication_s,
        engine_batch=float(solution.batch[row]),
        train_bytes_per_gpu=choice.leaf.bytes_per_gpu,
        rollout_bytes_per_gpu=max(_bytes_per_gpu(problem.model, engine) for engine in engines),
    )
    return Candidate(
        mode=choice.mode,
        streamed=choice.streamed,
        plan=Plan(train=choice.leaf.layout, rollout=rollout),
        slots_per_engine=tuple(sorted((engine.tp, engine.slots) for engine in engines)),
        forecast=forecast,
    )


def _bytes_per_gpu(model: ModelShape, engine: LoadedEngine) -> float:
    """Weights and the KV cache of the engine, spread over its GPUs."""
    return (model.weight_bytes + engine.law.kv_tokens * model.kv_bytes_per_token) / engine.tp
