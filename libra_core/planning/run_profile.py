"""What a run has measured of itself, as the costs that the planner reckons with.

Measured, and not corrected by hand: seconds of forward and backward per token and replica; the optimizer's seconds, and those
until the trainer can take groups again; the engines' decode and prefill time over what their law says of the same work. Recent
steps count more. Training is believed as it was measured with as many replicas. Where no step had as many, it is believed to
divide evenly over replicas, which slow each other down no more than those of the newest steps do. Engines are believed as they
were measured with that degree; a degree that has not served yet is off from its law by what the newest one is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from libra_core.config import LibraConfig
from libra_core.costs.api import (
    EngineLaws,
    TrainerLaw,
    TrainEstimate,
    TrainingLoad,
    TrainingShape,
    TrainTimeParts,
)
from libra_core.errors import ConfigError
from libra_core.planning.lengths import LengthTable, length_table
from libra_core.planning.loading import regime_of
from libra_core.planning.problem import Cluster, Costs, ModelShape, PlanningProblem
from libra_core.planning.run_costs import RunCosts
from libra_core.planning.run_forecast import RecentMean
from libra_core.types.laws import EngineLaw
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan
from libra_core.types.profile import RunProfile
from libra_core.types.reports import IterationReport


class RunMeter:
    """Recency-weighted means over iterations. Pure but for its own sums."""

    def __init__(self, engines: EngineLaws, plan: Plan, *, half_life_steps: float) -> None:
        self._engines = engines
        self._tp = plan.rollout.engines[0][0]
        self._core_replicas = plan.train.dp
        self._decay = 0.5 ** (1.0 / half_life_steps)
        self._trainer = RecentMean()
        self._per_token: dict[int, RecentMean] = {}
        """By number of replicas."""
        self._replicas = plan.train.dp
        self._engine_of: dict[int, RecentMean] = {}
        """By degree."""
        self._newest_tp = self._tp
        """Of those that were measured."""
        self._iteration = RecentMean()
        self.steps = 0

    def use(self, plan: Plan) -> None:
        """Engines of another degree serve from the next iteration on."""
        self._tp = plan.rollout.engines[0][0]

    def observe(self, report: IterationReport, *, fleet_changes: bool = False) -> None:
        """One finished iteration. Skipped steps say nothing of the trainer, a fleet in change nothing of its engines."""
        self.steps += 1
        rollout, update = report.rollout, report.update
        tokens = rollout.prompt_tokens + rollout.generated_tokens + rollout.tool_tokens
        if tokens and not update.skipped:
            replicas = self._core_replicas + update.hybrid_replicas
            work_s = update.forward_backward_s + update.logprob_s + update.hybrid_wait_s
            breakdown = report.breakdown
            between_s = breakdown.trainer_waits_publication_s + breakdown.trainer_other_s - update.hybrid_wait_s
            per_token = {"per_token": work_s * replicas / tokens}
            self._per_token[replicas] = self._per_token.get(replicas, RecentMean()).including(per_token, self._decay)
            self._replicas = replicas
            self._trainer = self._trainer.including(
                {
                    "fixed": update.optimizer_s + update.hybrid_stall_s,
                    "between": max(0.0, between_s),
                    "trained": min(1.0, update.tokens / tokens),
                },
                self._decay,
            )
        if not fleet_changes:
            self._observe_engines(report)
        self._iteration = self._iteration.including(
            {"t_iter": report.t_iter_s, "publication": report.publication.total_s}, self._decay
        )

    def profile(self, step: int, trajectories: int) -> RunProfile:
        """Raises `ConfigError` before anything was measured."""
        if not self._trainer.weight or not self._iteration.weight:
            raise ConfigError("no step of this run has been measured yet; replan after the first one that trains")
        trainer, iteration = self._trainer.mean, self._iteration.mean
        per_token = {replicas: mean.mean["per_token"] for replicas, mean in sorted(self._per_token.items())}
        engines = {tp: mean.mean for tp, mean in sorted(self._engine_of.items())}
        newest = engines.get(self._newest_tp, {})
        return RunProfile(
            step=step,
            measured_steps=self.steps,
            trajectories=trajectories,
            train_s_per_token=per_token[self._replicas],
            train_s_per_token_of=per_token,
            train_fixed_s=trainer["fixed"],
            between_s=trainer["between"],
            trained_share=trainer["trained"],
            decode_ratio=newest.get("ratio", 1.0),
            prefill_ratio=newest.get("prefill_ratio", 1.0),
            decode_batch=newest.get("batch", math.nan),
            decode_ratio_of={tp: mean["ratio"] for tp, mean in engines.items()},
            prefill_ratio_of={tp: mean["prefill_ratio"] for tp, mean in engines.items()},
            publication_s=iteration["publication"],
            t_iter_s=iteration["t_iter"],
        )

    def _observe_engines(self, report: IterationReport) -> None:
        work, rollout = report.engines, report.rollout
        if work is None or not work.steps or not rollout.trajectories:
            return
        context = (rollout.prompt_tokens + 0.5 * (rollout.generated_tokens + rollout.tool_tokens)) / rollout.trajectories
        law = self._engines[self._tp]
        predicted_s = work.steps * law.step_s(work.batch, work.batch * context)
        turns, computed = rollout.mean_turns * rollout.trajectories, rollout.context_tokens - rollout.cached_tokens
        predicted_prefill_s = turns * law.prefill_a_s + computed * law.prefill_b_s_per_token
        ratios = {
            "ratio": work.decode_s / predicted_s,
            "prefill_ratio": work.prefill_s / predicted_prefill_s if predicted_prefill_s else 1.0,
            "batch": work.batch,
        }
        self._engine_of[self._tp] = self._engine_of.get(self._tp, RecentMean()).including(ratios, self._decay)
        self._newest_tp = self._tp


def measured_trainer(evaluated: TrainerLaw, profile: RunProfile) -> TrainerLaw:
    """Work in proportion to tokens, shared by the replicas, and what comes once a step; memory and fit as evaluated.

    What lies between two steps counts as the trainer's: it can take no group meanwhile.
    """

    def evaluate(shape: TrainingShape, load: TrainingLoad) -> TrainEstimate:
        per_token = profile.train_s_per_token_of.get(shape.dp, profile.train_s_per_token)
        parts = TrainTimeParts(
            forward_backward_s=per_token * load.tokens / shape.dp, optimizer_s=profile.train_fixed_s + profile.between_s
        )
        return replace(evaluated.estimate(shape, load), t_train_s=parts.total_s, parts=parts)

    return TrainerLaw(shape_fit=evaluated.shape_fit, evaluate=evaluate)


def measured_engines(laws: EngineLaws, profile: RunProfile, promised_over_mean: float) -> EngineLaws:
    """The laws times what decode steps and prefills took over them; a cache that is promised in final contexts.

    `promised_over_mean`: final context of a trajectory, which is promised, over the mean one while it decodes.
    """

    def measured(tp: int, law: EngineLaw) -> EngineLaw:
        decode = profile.decode_ratio_of.get(tp, profile.decode_ratio)
        prefill = profile.prefill_ratio_of.get(tp, profile.prefill_ratio)
        return replace(law.scaled(decode, prefill), kv_tokens=int(law.kv_tokens / promised_over_mean))

    return laws.mapped(measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSide:
    """What of a run does not change: its evaluators and the shape of its model."""

    costs: RunCosts
    model: ModelShape
    num_gpus: int
    """Of the run; a plan may leave some of them idle."""
    engine_degrees: tuple[int, ...] = ()
    """That engines may have instead of those of the running plan."""


def problem_of_run(
    config: LibraConfig, side: RunSide, plan: Plan, records: Sequence[LengthRecord], profile: RunProfile
) -> PlanningProblem:
    """The planner's question with the run's own measurements: streaming's loss, and what the trainer waits for publications, are
    in the measured training time already."""
    lengths = length_table(records, half_life_steps=config.replanning.half_life_steps)
    degrees = tuple(sorted({*side.engine_degrees, *(tp for tp, _ in plan.rollout.engines)}))
    return PlanningProblem(
        cluster=Cluster(num_gpus=side.num_gpus, gpus_per_node=min(side.num_gpus, config.planner.gpus_per_node)),
        model=side.model,
        regime=replace(regime_of(config), streamed_loss=1.0, trainer_waits=0.0),
        lengths=lengths,
        costs=Costs(
            engines=measured_engines(side.costs.engines, profile, promised_over_mean(lengths)),
            trainer=measured_trainer(side.costs.trainer, profile),
            publication_s=lambda _train, _engines: profile.publication_s,
        ),
        rollout_degrees=degrees,
        train_degrees=(plan.train.tp,),
        train_shape=side.costs.shape,
        active=plan,
        drift=config.planner.drift,
    )


def promised_over_mean(lengths: LengthTable) -> float:
    """At least 1."""
    return max(1.0, lengths.mean(lengths.total_tokens) / lengths.mean_context)
