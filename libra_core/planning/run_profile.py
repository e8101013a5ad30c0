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
    Fit,
    StepCoefficients,
    TrainEstimate,
    TrainingLoad,
    TrainingShape,
    TrainTimeParts,
    scaled,
)
from libra_core.errors import ConfigError
from libra_core.planning.lengths import LengthTable, length_table
from libra_core.planning.loading import regime_of
from libra_core.planning.problem import Cluster, Costs, EngineCosts, ModelShape, PlanningProblem, TrainerCosts
from libra_core.planning.run_costs import RunCosts
from libra_core.planning.run_forecast import RecentMean
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan
from libra_core.types.profile import RunProfile
from libra_core.types.reports import IterationReport


class RunMeter:
    """Recency-weighted means over iterations. Pure but for its own sums."""

    def __init__(self, engines: EngineCosts, plan: Plan, *, half_life_steps: float) -> None:
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
            account = report.account
            between_s = account.trainer_waits_publication_s + account.trainer_other_s - update.hybrid_wait_s
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
            raise ConfigError("no step of this run has been measured yet; look at the plan after the first one that trains")
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
        law = self._engines.coefficients(self._tp)
        told_s = work.steps * law.step_s(work.batch, work.batch * context)
        turns, computed = rollout.mean_turns * rollout.trajectories, rollout.context_tokens - rollout.cached_tokens
        told_prefill_s = turns * law.prefill_a_s + computed * law.prefill_b_s_per_token
        ratios = {
            "ratio": work.decode_s / told_s,
            "prefill_ratio": work.prefill_s / told_prefill_s if told_prefill_s else 1.0,
            "batch": work.batch,
        }
        self._engine_of[self._tp] = self._engine_of.get(self._tp, RecentMean()).including(ratios, self._decay)
        self._newest_tp = self._tp


@dataclass(frozen=True, slots=True)
class MeasuredTrainer:
    """Work in proportion to tokens, shared by the replicas, and what comes once a step; memory and fit as evaluated.

    What lies between two steps counts as the trainer's: it can take no group meanwhile.
    """

    evaluated: TrainerCosts
    profile: RunProfile

    def shape_fit(self, shape: TrainingShape) -> Fit:
        return self.evaluated.shape_fit(shape)

    def estimate(self, shape: TrainingShape, load: TrainingLoad) -> TrainEstimate:
        per_token = self.profile.train_s_per_token_of.get(shape.dp, self.profile.train_s_per_token)
        work_s = per_token * load.tokens / shape.dp
        parts = TrainTimeParts(
            forward_backward_s=work_s,
            tp_communication_s=0.0,
            ep_communication_s=0.0,
            bubble_s=0.0,
            pp_transfer_s=0.0,
            dp_exposed_s=0.0,
            optimizer_s=self.profile.train_fixed_s + self.profile.between_s,
            logprob_s=0.0,
        )
        return replace(self.evaluated.estimate(shape, load), t_train_s=parts.total_s, parts=parts)


@dataclass(frozen=True, slots=True)
class MeasuredEngines:
    """The engines' law times what their decode steps took over it; a cache that is promised in final contexts."""

    evaluated: EngineCosts
    profile: RunProfile
    promised_over_mean: float
    """Final context of a trajectory over the mean one while it decodes: the coordinator promises the final one."""

    def coefficients(self, tp: int) -> StepCoefficients:
        law, profile = self.evaluated.coefficients(tp), self.profile
        decode = scaled(law, profile.decode_ratio_of.get(tp, profile.decode_ratio))
        prefill = scaled(law, profile.prefill_ratio_of.get(tp, profile.prefill_ratio))
        return replace(decode, **{name: getattr(prefill, name) for name in StepCoefficients.__slots__ if "prefill" in name})

    def kv_tokens(self, tp: int, utilization: float | None = None) -> int:
        return int(self.evaluated.kv_tokens(tp, utilization) / self.promised_over_mean)

    def fits(self, tp: int) -> Fit:
        return self.evaluated.fits(tp)


@dataclass(frozen=True, slots=True)
class MeasuredPublication:
    """As the run's own took."""

    seconds: float

    def publication_s(self, train: TrainingShape, engines: object) -> float:
        del train, engines
        return self.seconds


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
    """The planner's question with the run's own measurements: streaming's loss is in the measured training time already."""
    lengths = length_table(records, half_life_steps=config.replanning.half_life_steps)
    degrees = tuple(sorted({*side.engine_degrees, *(tp for tp, _ in plan.rollout.engines)}))
    return PlanningProblem(
        cluster=Cluster(num_gpus=side.num_gpus, gpus_per_node=min(side.num_gpus, config.planner.gpus_per_node)),
        model=side.model,
        regime=replace(regime_of(config), streamed_loss=1.0),
        lengths=lengths,
        costs=Costs(
            engines=MeasuredEngines(side.costs.engines, profile, promised_over_mean(lengths)),
            trainer=MeasuredTrainer(side.costs.trainer, profile),
            moving=MeasuredPublication(profile.publication_s),
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
