"""The rounds of one session's replan loop: what was measured, what is proposed and decided, what became of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from libra_core.config import LibraConfig
from libra_core.errors import ConfigError
from libra_core.planning.decision import PlanComparison, ReplanPolicy
from libra_core.planning.experience import CostBook, Experience
from libra_core.planning.problem import ModelShape
from libra_core.planning.proposals import at_work, propose_in_run
from libra_core.planning.replan_loop import ReplanLoop
from libra_core.planning.run_costs import RunCosts, engine_degrees
from libra_core.planning.run_profile import RunMeter, RunSide, problem_of_run
from libra_core.planning.transition import transition
from libra_core.types.decision import Decision, ResolvedDecision
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan, RolloutLayout
from libra_core.types.profile import RunProfile
from libra_core.types.reports import IterationReport
from libra_core.types.transition import Tier, Transition, TransitionCost, TransitionOutcome


class Controller(Protocol):
    """Of the session's controller, what a round needs."""

    def plan(self) -> Plan: ...
    def begin(self, transition: Transition) -> None: ...
    def outcome(self) -> TransitionOutcome | None: ...


class Lengths(Protocol):
    """Of the rollout pool, what a round needs."""

    def length_records(self) -> list[LengthRecord]: ...


class Replanner:
    """Owned by the flow's process, used by one thread at a time. Decides with what the run has measured of itself."""

    def __init__(
        self,
        config: LibraConfig,
        evaluators: tuple[RunCosts, ModelShape],
        controller: Controller,
        lengths: Lengths,
        on_plan: Callable[[Plan], None] = lambda _plan: None,
    ) -> None:
        """`on_plan` is told what trains and what serves from now on, whenever that changes.

        Raises:
            ConfigError: there is no law for the engines that run.
        """
        self._config, self._controller, self._lengths, self._on_plan = config, controller, lengths, on_plan
        (costs, model), rules = evaluators, config.replanning
        self._plan = plan = controller.plan()
        _ = costs.engines[plan.rollout.engines[0][0]]
        degrees = engine_degrees(costs, plan.rollout.num_gpus) if rules.repartition else ()
        self._side = RunSide(costs=costs, model=model, num_gpus=plan.num_gpus, engine_degrees=degrees)
        self._grounding = f"measured in the run; decode law: {_laws_rest_on(costs, plan, degrees)}"
        self._meter = RunMeter(costs.engines, plan, half_life_steps=rules.half_life_steps)
        policy = ReplanPolicy(
            horizon_steps=rules.horizon_steps,
            margin=rules.margin,
            cooldown_steps=rules.cooldown_steps,
            hysteresis=rules.hysteresis,
        )
        priors = {Tier.FLIP: rules.flip_cost_s, Tier.REPARTITION: rules.repartition_cost_s}
        book = CostBook(priors={tier: TransitionCost(start_s=seconds) for tier, seconds in priors.items()})
        self._loop = ReplanLoop(policy, book, self, realised_after_steps=rules.realised_after_steps)
        self._records: list[LengthRecord] = []
        self._forecast: tuple[int, Plan, float] | None = None
        """Step, plan and forecast iteration time of the round before: compared with what followed."""

    @property
    def experience(self) -> Experience:
        """What a resumed run goes on from."""
        return Experience(costs=self._loop.costs, errors=self._loop.errors)

    def resume(self, experience: Experience) -> None:
        """Go on from it, with the priors of this configuration."""
        self._loop.costs = replace(self._loop.costs, measured=experience.costs.measured)
        self._loop.errors = experience.errors

    def is_due(self, step: int, *, asked: bool = False) -> bool:
        """Whether the plan is compared after this iteration, by count or because somebody asked; not while it is changing."""
        every, first = self._config.replanning.every_steps, self._config.replanning.first_step
        by_count = every > 0 and step + 1 >= first and (step + 1 - first) % every == 0
        return (by_count or asked) and self._loop.moving is None

    def resolve(self, report: IterationReport | None) -> list[ResolvedDecision]:
        """Learn from an iteration, or from the run's end when there is none; returns what is now known of earlier decisions."""
        if report is None:
            return self._loop.conclude()
        self._meter.observe(report, fleet_changes=self._moves_engines())
        plan = self._controller.plan()
        if plan != self._plan:
            self._plan = plan
            self._meter.use(plan)
            self._on_plan(effective(plan))
        return self._loop.observe(report.step, report.t_iter_s)

    def profile(self, step: int) -> RunProfile:
        """Raises `ConfigError` before anything was measured."""
        self._compare()
        self._records = self._lengths.length_records()
        return self._meter.profile(step, len(self._records))

    def propose(self, profile: RunProfile) -> list[PlanComparison]:
        """The plan that runs against each flip and each re-partition, under this profile."""
        plan = self._controller.plan()
        problem = problem_of_run(self._config, self._side, plan, self._records, profile)
        facts = self._loop.facts(profile.step, self._config.training.steps - profile.step - 1, self._grounding)
        comparisons = propose_in_run(problem, plan, facts, streamed=self._config.streamed)
        if not comparisons:
            raise ConfigError(
                "nothing can move: every flip would leave no engine, and engines of no other tp fit this model, these GPUs and "
                "the longest trajectory"
            )
        self._forecast = (profile.step, plan, comparisons[0].current.forecast.t_iter_s)
        return comparisons

    def decide(self, comparisons: list[PlanComparison]) -> Decision:
        return self._loop.decide(comparisons)

    def apply(self, decision: Decision) -> None:
        """Begin the transition of a switch; anything else needs nothing."""
        self._loop.apply(decision)

    def begin(self, decision: Decision) -> None:
        """As the loop's mover."""
        self._controller.begin(transition(decision.current.plan, decision.candidate.plan))

    def outcome(self) -> TransitionOutcome | None:
        """As the loop's mover."""
        return self._controller.outcome()

    def _moves_engines(self) -> bool:
        """Whether engines of both plans may have served in an iteration that has just ended."""
        return self._loop.moving is not None and self._loop.moving.tier is Tier.REPARTITION

    def _compare(self) -> None:
        """What the round before forecast of the plan that ran, against what ran since."""
        if self._forecast is None:
            return
        (step, plan, forecast_s), self._forecast = self._forecast, None
        measured_s = self._loop.mean_since(step)
        if measured_s is not None and plan == self._controller.plan():
            self._loop.compare(forecast_s, measured_s)


def _laws_rest_on(costs: RunCosts, plan: Plan, degrees: Sequence[int]) -> str:
    """Of the plan's engines and of those that may come instead; one sentence where all are the device's kernels."""
    engines = RolloutLayout(engines=tuple((tp, 1) for tp in sorted({*degrees, *(tp for tp, _ in plan.rollout.engines)})))
    return costs.engine_grounding(replace(plan, rollout=engines))


def effective(plan: Plan) -> Plan:
    """What trains and what serves, as a plan without hybrids."""
    train, rollout = at_work(plan)
    return replace(plan, train=train, rollout=rollout, hybrid_replicas=0, hybrids_training=0)
