"""Who changes the plan of a running world, and when."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from libra_core.planning.candidates import search_inputs
from libra_core.planning.decision import PastComparisons, PlanComparison, ReplanPolicy, tier_of
from libra_core.planning.experience import CostBook, ErrorBook
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.lengths import LengthTable
from libra_core.planning.placement import most_engines
from libra_core.planning.problem import Cluster, PlanningProblem, Regime
from libra_core.planning.proposals import at_work, choose, flips, forecast_of
from libra_core.planning.training_tree import Cuts, shape_of
from libra_core.simulation.study.beliefs import NO_CORRECTION, Factors, believed_train_s, costs_of, length_table_of, problem
from libra_core.simulation.study.config import StudyConfig, SystemConfig
from libra_core.simulation.study.splits import Start
from libra_core.simulation.truth import TransitionTruth
from libra_core.simulation.world import World
from libra_core.types.decision import Decision, Verdict
from libra_core.types.forecast import Candidate
from libra_core.types.plan import Plan, RolloutLayout
from libra_core.types.transition import Tier, TransitionCost

HISTORY_STEPS = 8
_KNOWN = 0.01
"""Error of forecasts for trajectories that are known."""
_TRAINED_STEPS = 40
"""Measured training steps that beliefs are corrected by: enough for what steps scatter by to even out."""


class StudyController(Protocol):
    """Replans a world between two steps."""

    def replan(self, world: World) -> None: ...


class Static:
    """Never changes anything."""

    def replan(self, world: World) -> None:
        return


@dataclass(slots=True)
class ReplanningController:
    """The planner under the newest lengths, and the rule of `planning.decision` with measured costs and errors."""

    study: StudyConfig
    system: SystemConfig
    start: Start
    truth: TransitionTruth
    ledger: list[Decision] = field(default_factory=list[Decision])
    planning_s: list[float] = field(default_factory=list[float])
    """CPU time of each round that planned."""
    _past: PastComparisons = field(default_factory=PastComparisons)
    _errors: ErrorBook = field(default_factory=ErrorBook)
    _costs: CostBook | None = None
    _running: Candidate | None = None
    _correction: Factors = NO_CORRECTION
    _seen_s: float = 0.0
    _seen_version: int = 0

    def replan(self, world: World) -> None:
        if world.version % self.study.replan_every or len(world.plan.rollout.engines) > 1:
            return
        began = time.process_time()
        lengths, running = self._lengths(world), self._running or self.start.candidate
        asked = self._asked(world, lengths)
        inputs = search_inputs(asked, Cuts())
        current = forecast_of(inputs, world.plan, running)
        if self.system.corrects:
            self._correction = self._corrected(world, asked.regime)
            asked = self._asked(world, lengths)
            inputs = search_inputs(asked, Cuts())
            current = forecast_of(inputs, world.plan, running)
        self._compare_with_forecast(world, current)
        candidates = [plan_resources(asked).best] + (flips(inputs, current) if self.system.elastic else [])
        book = self._costs or CostBook(priors=prior_costs(self.truth, free=self.system.lengths_known))
        comparisons = [
            PlanComparison(
                step=world.version,
                steps_left=self.study.steps - world.version,
                current=current,
                candidate=candidate,
                cost=book.expected(self._tier(world.plan, candidate.plan)),
                forecast_error=_KNOWN if self.system.lengths_known else self._errors.error,
                forecast_bias=None if self.system.lengths_known else self._errors.bias,
            )
            for candidate in candidates
        ]
        decision = choose(comparisons, self._policy(), self._past)
        self.planning_s.append(time.process_time() - began)
        self.ledger.append(decision)
        self._past = self._past.after(decision)
        if decision.verdict is Verdict.SWITCH:
            self._switch(world, decision, book)

    def _asked(self, world: World, lengths: LengthTable) -> PlanningProblem:
        """No round proposes a mixed fleet or the other mode, so neither is searched for."""
        asked = problem(self.study, self.system, lengths, active=world.plan, correction=self._correction)
        return replace(asked, router=None, regime=replace(asked.regime, modes=(self.start.candidate.mode,)))

    def _switch(self, world: World, decision: Decision, book: CostBook) -> None:
        target = decision.candidate
        tier = self._tier(world.plan, target.plan)
        engine_s, trainer_s = seconds_of(self.truth, tier, free=self.system.lengths_known)
        world.apply(target.plan, engine_s=engine_s, trainer_s=trainer_s)
        world.stream(target.streamed)
        self._running = target
        measured = TransitionCost(start_s=max(engine_s, trainer_s))
        self._costs = book.including(tier, measured)

    def _tier(self, now: Plan, then: Plan) -> Tier:
        """With a hybrid pool, replicas of the same shape change sides whatever the core's size is."""
        tier = tier_of(now, then) or Tier.FLIP
        same_shape = (now.train.tp, now.train.pp, now.train.cp) == (then.train.tp, then.train.pp, then.train.cp)
        same_degrees = {tp for tp, _ in now.rollout.engines} == {tp for tp, _ in then.rollout.engines}
        return Tier.FLIP if self.system.elastic and same_shape and same_degrees else tier

    def _policy(self) -> ReplanPolicy:
        every = self.study.replan_every
        known = self.system.lengths_known
        return ReplanPolicy(cooldown_steps=every if known else 2 * every, margin=0.0 if known else 0.2)

    def _lengths(self, world: World) -> LengthTable:
        if self.system.lengths_known:
            start = min(world.version, world.steps - 2) * self.study.batch
            return length_table_of(world.trajectories.rows(start, min(start + 2 * self.study.batch, len(world.trajectories))))
        first = max(0, world.version - HISTORY_STEPS)
        steps = world.state.groups.step
        groups = np.flatnonzero((steps >= first) & (steps < world.version))
        size = self.study.group_size
        low, high = int(groups.min()) * size, (int(groups.max()) + 1) * size
        age = np.repeat(np.maximum(world.version - 1 - steps[groups.min() : groups.max() + 1], 0), size).astype(np.float64)
        age = np.where(np.repeat(steps[groups.min() : groups.max() + 1] < 0, size), 1e3, age)
        return length_table_of(world.trajectories.rows(low, high), age)

    def _corrected(self, world: World, regime: Regime) -> Factors:
        """Measured training time over what is believed of the same trajectories; the engines' decode time over what the believed
        law makes of the steps they counted; and what they prefilled again, as prefill."""
        laws = costs_of(self.study)[0].engines
        engines = world.state.engines[world.alive()]
        believed_s = 0.0
        for engine in engines:
            law = laws[int(engine.tp)]
            believed_s += law.a_s * engine.decode_steps + law.b_s * engine.decode_tokens + law.c_s * engine.decode_context
        prefill_s = float(engines.prefilled_s.sum())
        return Factors(
            decode=float(engines.decode_s.sum()) / believed_s if believed_s > 0 else self._correction.decode,
            prefill=1 + float(engines.reprefilled_s.sum()) / prefill_s if prefill_s > 0 else self._correction.prefill,
            train=self._train_factor(world, regime),
        ).bounded()

    def _train_factor(self, world: World, regime: Regime) -> float:
        """Over the steps since the plan changed, at most `_TRAINED_STEPS`."""
        first = max(self._past.switched_at or 0, world.version - _TRAINED_STEPS)
        steps = world.state.groups.step
        trained = np.repeat((steps >= first) & (steps < world.version), self.study.group_size)
        tokens = world.trajectories.total_tokens[: trained.size][trained]
        lost = regime.streamed_loss if world.pacing.streamed else 1.0
        believed_s = lost * believed_train_s(self.study, at_work(world.plan)[0], tokens, world.version - first)
        return float(world.state.steps.train_s[first : world.version].mean()) / believed_s

    def _compare_with_forecast(self, world: World, current: Candidate) -> None:
        if self._seen_version:
            measured = (world.now_s - self._seen_s) / (world.version - self._seen_version)
            self._errors = self._errors.including(current.forecast.t_iter_s, measured)
        self._seen_s, self._seen_version = world.now_s, world.version


def prior_costs(truth: TransitionTruth, *, free: bool) -> Mapping[Tier, TransitionCost]:
    """What a transition is believed to cost before one was measured."""
    return {tier: TransitionCost(start_s=max(seconds_of(truth, tier, free=free))) for tier in Tier}


def seconds_of(truth: TransitionTruth, tier: Tier, *, free: bool) -> tuple[float, float]:
    """Until new engines serve, and for how long the trainer stands still."""
    if free:
        return 0.0, 0.0
    seconds = {
        Tier.FLIP: (truth.hybrid_engine_s, truth.hybrid_trainer_s),
        Tier.REPARTITION: (truth.engine_start_s, 0.0),
        Tier.RELAYOUT: (truth.engine_start_s, truth.trainer_rebuild_s),
    }
    return seconds[tier]


@dataclass(slots=True)
class IdleRatio:
    """Lends whole replicas between the sides by measured idle shares, as DynaRL and verl's dynamic schedule do.

    A move is proposed when one side idles clearly more than the other, costs the rolling mean of measured moves, and is taken
    back when the next rounds show that it did not help; the direction is then left alone for a while. The degree of the engines
    stays as the planner chose it for the initial workload.
    """

    study: StudyConfig
    system: SystemConfig
    start: Start
    truth: TransitionTruth
    lengths: LengthTable
    tolerance: float = 0.10
    patience: int = 8
    """Rounds for which a direction is left alone after a move that did not help, and twice as many after each further one."""
    rounds_apart: int = 2
    """In the study's replanning rounds: five steps are too noisy to judge a move by."""
    _seen: tuple[int, float, float] = (0, 0.0, 0.0)
    _before: tuple[Plan, float] | None = None
    _blocked: dict[int, int] = field(default_factory=dict[int, int])
    _failed: dict[int, int] = field(default_factory=dict[int, int])
    _ladder: dict[int, Plan] = field(default_factory=dict[int, Plan])

    def replan(self, world: World) -> None:
        if world.version % (self.rounds_apart * self.study.replan_every):
            return
        version, then_s, then_starved = self._seen
        spent = world.fleet_time()
        starved = spent.starved_s
        self._seen = (world.version, world.now_s, starved)
        if not version:
            return
        t_iter = (world.now_s - then_s) / (world.version - version)
        steps = world.state.steps[version : world.version]
        each_s = (world.now_s - then_s) / float(steps.generated.sum())
        if self._before is not None and self._took_back(world, each_s):
            return
        trainer_idle = float(steps.waited_s.sum()) / (world.now_s - then_s)
        fleet_idle = (starved - then_starved) / ((world.now_s - then_s) * world.plan.rollout.num_gpus)
        direction = 1 if fleet_idle - trainer_idle > self.tolerance else -1 if trainer_idle - fleet_idle > self.tolerance else 0
        target = self._neighbour(world.plan, direction)
        if target is None or self._blocked.get(direction, 0) > world.version:
            return
        gain = t_iter * abs(fleet_idle - trainer_idle) / 2
        engine_s, trainer_s = self.truth.hybrid_engine_s, self.truth.hybrid_trainer_s
        if gain * (self.study.steps - world.version) > max(engine_s, trainer_s):
            self._before = (world.plan, each_s)
            world.apply(target, engine_s=engine_s, trainer_s=trainer_s)

    def _took_back(self, world: World, each_s: float) -> bool:
        """A move that made a generated token dearer is undone; per token, or lengths that drift would hide it."""
        assert self._before is not None
        plan, before_s = self._before
        self._before = None
        if each_s <= before_s * 1.02:
            return False
        direction = 1 if world.plan.train.num_gpus > plan.train.num_gpus else -1
        self._failed[direction] = self._failed.get(direction, 0) + 1
        wait = self.patience * 2 ** (self._failed[direction] - 1)
        self._blocked[direction] = world.version + wait * self.study.replan_every
        world.apply(plan, engine_s=self.truth.hybrid_engine_s, trainer_s=self.truth.hybrid_trainer_s)
        return True

    def _neighbour(self, plan: Plan, direction: int) -> Plan | None:
        """The next larger or smaller training world of the same shape, with the engines that fit beside it."""
        if direction == 0:
            return None
        if not self._ladder:
            self._ladder = self._plans(plan)
        sizes = sorted(self._ladder)
        place = sizes.index(plan.train.num_gpus) + direction
        return self._ladder[sizes[place]] if 0 <= place < len(sizes) else None

    def _plans(self, plan: Plan) -> dict[int, Plan]:
        """Every number of replicas of the plan's shape that leaves room for an engine."""
        cluster = Cluster(num_gpus=self.study.gpus, gpus_per_node=self.study.gpus_per_node)
        ((tp, _),) = plan.rollout.engines
        ladder: dict[int, Plan] = {}
        asked = problem(self.study, self.system, self.lengths)
        load = self.lengths.training_load(self.study.batch, asked.regime.longest_tokens)
        for dp in range(1, self.study.gpus // plan.train.replica_gpus):
            layout = replace(plan.train, dp=dp)
            engines = most_engines(cluster, layout, tp)
            fits = shape_of(layout)
            if engines and asked.costs.trainer.estimate(fits, load).fit.fits:
                ladder[layout.num_gpus] = Plan(train=layout, rollout=RolloutLayout(engines=((tp, engines),)))
        ladder[plan.train.num_gpus] = plan
        return ladder
