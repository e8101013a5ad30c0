"""What planners of the simulated systems believe: the cost evaluator's figures, or the truth's tables."""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from libra_core.costs.api import (
    EngineLaws,
    RolloutCosts,
    TrainerLaw,
    TrainEstimate,
    TrainingCosts,
    TrainingLoad,
    TrainingShape,
    load_device,
    load_model,
    publication_time,
)
from libra_core.planning.confusion import ORACLE, RouterSkill
from libra_core.planning.lengths import LengthTable, table_of
from libra_core.planning.problem import (
    SENDING_SHARE,
    Cluster,
    Costs,
    ModelShape,
    PlanningProblem,
    Regime,
)
from libra_core.planning.training_tree import of_fullest_replica, shape_of
from libra_core.simulation.study.config import StudyConfig, SystemConfig
from libra_core.simulation.truth import Truth, load_truth
from libra_core.simulation.workload.trajectories import Floats, Trajectories
from libra_core.types.forecast import Mode
from libra_core.types.plan import Plan, TrainLayout

_UTILIZATION = 0.9
_FARTHEST = 3.0
_ACCURACY, _TAIL_RECALL = 0.7, 0.5
"""What a router is assumed to recognise, unless the lengths are known; no recording has such a figure."""


def trainer_of(truth: Truth, evaluator: TrainingCosts) -> TrainerLaw:
    """Feasibility from the evaluator, time from the truth's table."""
    trainer = truth.trainer
    linear, pairs = trainer.flop_coefficients()

    def evaluate(shape: TrainingShape, load: TrainingLoad) -> TrainEstimate:
        predicted = evaluator.estimate(shape, load)
        work = linear * (load.tokens + trainer.fixed_tokens * load.num_sequences) + pairs * load.squared_tokens
        seconds = (
            work / trainer.flops(shape.num_gpus, shape.tp, predicted.bubble_share, batch=load.num_sequences) + trainer.fixed_s
        )
        return replace(predicted, t_train_s=seconds if predicted.fit.fits else predicted.t_train_s)

    return TrainerLaw(shape_fit=evaluator.shape_fit, evaluate=evaluate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """By how much the planner's times are to be multiplied."""

    decode: float = 1.0
    prefill: float = 1.0
    train: float = 1.0

    def bounded(self) -> "Factors":
        """Never beyond a factor of three, whatever was measured."""
        return Factors(**{name: min(max(value, 1 / _FARTHEST), _FARTHEST) for name, value in asdict(self).items()})


def costs_of(study: StudyConfig) -> tuple[Costs, ModelShape]:
    """Cached in a process: layer times are costly."""
    truth = str(study.path(study.truth)) if study.believes == "truth" else None
    return _costs(study.device, study.model, study.gpus_per_node, truth, study.forecast_error)


@lru_cache(maxsize=8)
def _costs(device_name: str, model_name: str, node: int, truth_path: str | None, error: float) -> tuple[Costs, ModelShape]:
    device, model = load_device(device_name), load_model(model_name)
    evaluator = TrainingCosts(device, model, node_size=node, logprob_pass=True)
    if truth_path is None:
        engines, trainer = RolloutCosts(device, model, utilization=_UTILIZATION).laws(), evaluator.law()
    else:
        truth = load_truth(truth_path)
        engines, trainer = EngineLaws(of=truth.engines), trainer_of(truth, evaluator)
    shape = ModelShape.of(model)
    costs = Costs(engines=engines, trainer=trainer, publication_s=publication_time(device, model))
    return corrected(costs, Factors(decode=1 + error, train=1 - error)) if error else costs, shape


def corrected(costs: Costs, factors: Factors) -> Costs:
    """Costs times their factors."""
    return replace(
        costs, engines=costs.engines.scaled(factors.decode, factors.prefill), trainer=costs.trainer.scaled(factors.train)
    )


def believed_train_s(study: StudyConfig, layout: TrainLayout, tokens: Floats, steps: int) -> float:
    """Mean over whole steps that trained trajectories of `tokens` `[n]`."""
    load = TrainingLoad(
        num_sequences=study.batch,
        tokens=float(tokens.sum()) / steps,
        squared_tokens=float((tokens**2).sum()) / steps,
        longest_tokens=float(tokens.max()),
    )
    trainer = costs_of(study)[0].trainer
    return trainer.estimate(shape_of(layout), of_fullest_replica(load, layout.dp)).t_train_s


NO_CORRECTION = Factors()
_MODES = {
    "asynchronous": (Mode.ASYNCHRONOUS,),
    "colocated": (Mode.COLOCATED,),
    "either": (Mode.ASYNCHRONOUS, Mode.COLOCATED),
}


def problem(
    study: StudyConfig,
    system: SystemConfig,
    lengths: LengthTable,
    active: Plan | None = None,
    correction: Factors = NO_CORRECTION,
) -> PlanningProblem:
    """What this system's planner is asked, its costs corrected by what it has measured."""
    costs, shape = costs_of(study)
    return PlanningProblem(
        cluster=Cluster(num_gpus=study.gpus, gpus_per_node=study.gpus_per_node),
        model=shape,
        regime=Regime(
            batch=study.batch,
            group_size=study.group_size,
            staleness=0 if system.synchronous else study.staleness,
            age_slack=system.age_slack,
            kv_fill=system.kv_fill or 1.0,
            streamed=(False, True) if system.streamed else (False,),
            trainer_waits=SENDING_SHARE if system.overlap else 1.0,
            modes=_MODES[system.mode],
        ),
        lengths=lengths,
        costs=corrected(costs, correction),
        rollout_degrees=system.degrees,
        active=active,
        router=_skill(system),
    )


def _skill(system: SystemConfig) -> RouterSkill | None:
    if not system.mixed:
        return None
    return ORACLE if system.lengths_known else RouterSkill(accuracy=_ACCURACY, tail_recall=_TAIL_RECALL)


def length_table_of(work: Trajectories, age_steps: Floats | None = None, half_life_steps: float = 10.0) -> LengthTable:
    """As `planning.lengths.length_table`, without a record for each trajectory; `age_steps` `[n]`."""
    first, turns = work.first_turn, work.turns
    before, arriving = work.contexts()
    pairs = np.add.reduceat(arriving * (before + arriving / 2), first)
    decode = np.add.reduceat(work.generated * (before + arriving + work.generated / 2), first)
    returned = work.total_tokens - work.prompt_tokens - work.total_generated
    columns = (work.total_generated, turns.astype(np.float64), work.prompt_tokens, returned, work.total_tool_s, pairs, decode)
    weight = np.ones(len(work)) if age_steps is None else 0.5 ** (age_steps / half_life_steps)
    return table_of(np.stack(columns, axis=1), weight)
