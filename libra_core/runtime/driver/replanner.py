"""The replanning rounds of one run: what was measured, what is proposed and decided, what became of it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from libra_core.config import LibraConfig
from libra_core.costs.api import load_model
from libra_core.errors import ConfigError
from libra_core.planning.decision import PastComparisons, PlanComparison, ReplanPolicy
from libra_core.planning.experience import CostBook, ErrorBook, Experience
from libra_core.planning.problem import ModelShape
from libra_core.planning.proposals import ReplanFacts, at_work, choose, propose_in_run
from libra_core.planning.run_costs import RunCosts, engine_degrees, run_costs
from libra_core.planning.run_profile import RunMeter, RunSide, problem_of_run
from libra_core.planning.transition import transition
from libra_core.runtime.cluster.hybrid_pool import Recovery
from libra_core.types.decision import Decision, Realised, ResolvedDecision, Verdict
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan, RolloutLayout
from libra_core.types.profile import RunProfile
from libra_core.types.reports import IterationReport
from libra_core.types.transition import Tier, Transition, TransitionCost, TransitionOutcome, Verb

logger = logging.getLogger(__name__)

_DRAINS = frozenset({Verb.DRAIN_ENGINE, Verb.LEAVE})
_TRANSFERS = frozenset({Verb.JOIN, Verb.ADMIT_ENGINE})


class TransitionController(Protocol):
    """Of `ClusterController`, what a replanning round needs."""

    def plan(self) -> Plan: ...
    def begin(self, transition: Transition) -> None: ...
    def outcome(self) -> TransitionOutcome | None: ...
    def recoveries(self) -> list[Recovery]: ...


class Lengths(Protocol):
    """Of the rollout pool, what a replanning round needs."""

    def length_records(self) -> list[LengthRecord]: ...


@dataclass(slots=True, kw_only=True)
class _Applied:
    decision: Decision
    before_s: float
    """Mean iteration time before it."""
    ended_at: int | None = None
    """Iteration in which the transition was seen to have ended."""
    cost_s: float = 0.0


class Replanner:
    """Owned by the flow's process, used by one thread at a time. Decides with what the run has measured of itself."""

    def __init__(
        self,
        config: LibraConfig,
        model_folder: str,
        controller: TransitionController,
        lengths: Lengths,
        on_plan: Callable[[Plan], None] = lambda _plan: None,
    ) -> None:
        """`on_plan` is told what trains and what serves from now on, whenever that changes.

        Raises:
            ConfigError: there is no law for the engines that run.
        """
        self._config, self._controller, self._lengths, self._on_plan = config, controller, lengths, on_plan
        model, rules = load_model(model_folder), config.replanning
        costs = run_costs(config, model)
        self._plan = plan = controller.plan()
        _ = costs.engines[plan.rollout.engines[0][0]]
        degrees = engine_degrees(costs, plan.rollout.num_gpus) if rules.repartition else ()
        self._side = RunSide(costs=costs, model=ModelShape.of(model), num_gpus=plan.num_gpus, engine_degrees=degrees)
        self._grounding = f"measured in the run; decode law: {_laws_rest_on(costs, plan, degrees)}"
        self._meter = RunMeter(costs.engines, plan, half_life_steps=rules.half_life_steps)
        self._policy = ReplanPolicy(
            horizon_steps=rules.horizon_steps,
            margin=rules.margin,
            cooldown_steps=rules.cooldown_steps,
            hysteresis=rules.hysteresis,
        )
        self._past = PastComparisons()
        priors = {Tier.FLIP: rules.flip_cost_s, Tier.REPARTITION: rules.repartition_cost_s}
        self._costs = CostBook(priors={tier: TransitionCost(start_s=seconds) for tier, seconds in priors.items()})
        self._errors = ErrorBook()
        self._times: dict[int, float] = {}
        self._records: list[LengthRecord] = []
        self._forecast: tuple[int, Plan, float] | None = None
        """Step, plan and forecast iteration time of the round before: compared with what followed."""
        self._moving: _Applied | None = None
        self._unproven: list[_Applied] = []

    @property
    def experience(self) -> Experience:
        """What a resumed run goes on from."""
        return Experience(costs=self._costs, errors=self._errors)

    def resume(self, experience: Experience) -> None:
        """Go on from it, with the priors of this configuration."""
        self._costs, self._errors = replace(self._costs, measured=experience.costs.measured), experience.errors

    def is_due(self, step: int, *, asked: bool = False) -> bool:
        """Whether the plan is compared after this iteration, by count or because somebody asked; not while it is changing."""
        every, first = self._config.replanning.every_steps, self._config.replanning.first_step
        by_count = every > 0 and step + 1 >= first and (step + 1 - first) % every == 0
        return (by_count or asked) and self._moving is None

    def resolve(self, report: IterationReport | None) -> list[ResolvedDecision]:
        """Learn from an iteration, or from the run's end when there is none; returns what is now known of earlier decisions."""
        if report is None:
            return [*self._ended(max(self._times, default=0)), *self._given_up(), *self._proven(at_end=True)]
        self._meter.observe(report, fleet_changes=self._moves_engines())
        self._times[report.step] = report.t_iter_s
        plan = self._controller.plan()
        if plan != self._plan:
            self._plan = plan
            self._meter.use(plan)
            self._on_plan(effective(plan))
        return [*self._ended(report.step), *self._proven(at_end=False)]

    def profile(self, step: int) -> RunProfile:
        """Raises `ConfigError` before anything was measured."""
        self._compare()
        self._records = self._lengths.length_records()
        return self._meter.profile(step, len(self._records))

    def propose(self, profile: RunProfile) -> list[PlanComparison]:
        """The plan that runs against each flip and each re-partition, under this profile."""
        plan = self._controller.plan()
        problem = problem_of_run(self._config, self._side, plan, self._records, profile)
        facts = ReplanFacts(
            step=profile.step,
            steps_left=self._config.training.steps - profile.step - 1,
            costs=self._costs,
            errors=self._errors,
            grounding=self._grounding,
        )
        comparisons = propose_in_run(problem, plan, facts, streamed=self._config.streamed)
        if not comparisons:
            raise ConfigError(
                "nothing can move: every flip would leave no engine, and engines of no other tp fit this model, these GPUs and "
                "the longest trajectory"
            )
        self._forecast = (profile.step, plan, comparisons[0].current.forecast.t_iter_s)
        return comparisons

    def decide(self, comparisons: list[PlanComparison]) -> Decision:
        decision = choose(comparisons, self._policy, self._past)
        self._past = self._past.after(decision)
        return decision

    def apply(self, decision: Decision) -> None:
        """Begin the transition of a switch; anything else needs nothing."""
        if decision.verdict is not Verdict.SWITCH:
            return
        self._controller.begin(transition(decision.current.plan, decision.candidate.plan))
        self._moving = _Applied(decision=decision, before_s=self._before(decision.step))

    def _moves_engines(self) -> bool:
        """Whether engines of both plans may have served in an iteration that has just ended."""
        return self._moving is not None and self._moving.decision.tier is Tier.REPARTITION

    def _ended(self, step: int) -> list[ResolvedDecision]:
        if self._moving is None or (outcome := self._controller.outcome()) is None:
            return []
        applied, self._moving = self._moving, None
        cost = cost_of(outcome)
        if outcome.applied:
            assert applied.decision.tier is not None
            self._costs = self._costs.including(applied.decision.tier, cost)
            applied.ended_at, applied.cost_s = step, cost.total_s
            self._unproven.append(applied)
        else:
            logger.warning("the plan stays as it was: %s", outcome.error)
        return [ResolvedDecision(step=applied.decision.step, outcome=outcome)]

    def _given_up(self) -> list[ResolvedDecision]:
        """A move that the run's end cuts short: whatever it gets to, no step sees it."""
        applied, self._moving = self._moving, None
        return [] if applied is None else [ResolvedDecision(step=applied.decision.step, abandoned=True)]

    def _proven(self, *, at_end: bool) -> list[ResolvedDecision]:
        """Those whose window after the switch is full; a later switch and the run's end close a window early."""
        window = self._config.replanning.realised_after_steps
        closes = at_end or self._moving is not None
        proven = [a for a in self._unproven if len(self._after(a)) >= window or (closes and self._after(a))]
        self._unproven = [applied for applied in self._unproven if applied not in proven]
        return [_realised(applied, fmean(self._after(applied))) for applied in proven]

    def _after(self, applied: _Applied) -> list[float]:
        """Iteration times from the second one after the switch on; the first began under the old plan."""
        window = self._config.replanning.realised_after_steps
        first = (applied.ended_at or 0) + 1
        return [self._times[step] for step in range(first, first + window) if step in self._times]

    def _before(self, step: int) -> float:
        """Mean time of the iterations up to this one."""
        window = self._config.replanning.realised_after_steps
        return fmean(self._times[number] for number in range(step - window + 1, step + 1) if number in self._times)

    def _compare(self) -> None:
        """What the round before forecast of the plan that ran, against what ran since."""
        if self._forecast is None:
            return
        step, plan, predicted_s = self._forecast
        since = [seconds for number, seconds in self._times.items() if number > step]
        if since and self._moving is None and plan == self._controller.plan() and not self._past_switch_since(step):
            self._errors = self._errors.including(predicted_s, fmean(since))
        self._forecast = None

    def _past_switch_since(self, step: int) -> bool:
        return self._past.switched_at is not None and self._past.switched_at >= step


def cost_of(outcome: TransitionOutcome) -> TransitionCost:
    """Seconds of its phases by kind, as the planner's cost."""
    drain = sum(seconds for verb, seconds in outcome.phases if verb in _DRAINS)
    transfer = sum(seconds for verb, seconds in outcome.phases if verb in _TRANSFERS)
    total = sum(seconds for _, seconds in outcome.phases)
    return TransitionCost(drain_s=drain, transfer_s=transfer, start_s=total - drain - transfer)


def _laws_rest_on(costs: RunCosts, plan: Plan, degrees: Sequence[int]) -> str:
    """Of the plan's engines and of those that may come instead; one sentence where all are the device's kernels."""
    engines = RolloutLayout(engines=tuple((tp, 1) for tp in sorted({*degrees, *(tp for tp, _ in plan.rollout.engines)})))
    return costs.engine_grounding(replace(plan, rollout=engines))


def effective(plan: Plan) -> Plan:
    """What trains and what serves, as a plan without hybrids."""
    train, rollout = at_work(plan)
    return replace(plan, train=train, rollout=rollout, hybrid_replicas=0, hybrids_training=0)


def _realised(applied: _Applied, after_s: float) -> ResolvedDecision:
    return ResolvedDecision(
        step=applied.decision.step,
        realised=Realised(
            step=applied.decision.step,
            gain_s_per_step=applied.before_s - after_s,
            t_iter_s=after_s,
            cost_s=applied.cost_s,
        ),
    )
