"""Who changes the plan of a running world, and when: the replan loop, the rule of other systems, or nobody."""

import time
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from libra_core.planning.candidates import search_inputs
from libra_core.planning.decision import PlanComparison, ReplanPolicy, tier_of
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.lengths import LengthTable
from libra_core.planning.placement import most_engines
from libra_core.planning.problem import Cluster, PlanningProblem, Regime
from libra_core.planning.proposals import ReplanFacts, at_work, comparisons_with, flips, forecast_of
from libra_core.planning.replan_loop import ReplanLoop
from libra_core.planning.training_tree import Cuts, shape_of
from libra_core.simulation.mover import WorldMover
from libra_core.simulation.study.beliefs import NO_CORRECTION, Factors, believed_train_s, costs_of, length_table_of, problem
from libra_core.simulation.study.config import StudyConfig, SystemConfig
from libra_core.simulation.study.splits import Start
from libra_core.simulation.truth import TransitionTruth
from libra_core.simulation.world import World
from libra_core.types.decision import Decision
from libra_core.types.forecast import Candidate
from libra_core.types.plan import Plan, RolloutLayout
from libra_core.types.transition import Tier, TransitionOutcome

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


class StudyReplanner:
    """The replan loop with the planner under the newest lengths as its source of proposals, and a world that moves at once."""

    def __init__(self, study: StudyConfig, system: SystemConfig, start: Start, world: World) -> None:
        self.study, self.system, self.start = study, system, start
        self.decisions: list[Decision] = []
        self.round_s: list[float] = []
        """CPU time of each round that planned."""
        self._world, self._running = world, start.candidate
        self._mover = WorldMover(world, free=system.lengths_known)
        every, known = study.replan_every, system.lengths_known
        self._loop = ReplanLoop(
            ReplanPolicy(cooldown_steps=every if known else 2 * every, margin=0.0 if known else 0.2),
            self._mover.priors,
            self,
            realised_after_steps=every,
            kind_of=self._tier,
        )
        self._correction = NO_CORRECTION
        self._seen: tuple[int, float] | None = None
        """Version and virtual time of the round before."""
        self._observed_s = 0.0

    def replan(self, world: World) -> None:
        self._loop.observe(world.version, world.now_s - self._observed_s)
        self._observed_s = world.now_s
        if world.version % self.study.replan_every or len(world.plan.rollout.engines) > 1:
            return
        began = time.process_time()
        lengths = self._lengths(world)
        asked = self._asked(world, lengths)
        inputs = search_inputs(asked, Cuts())
        current = forecast_of(inputs, world.plan, self._running)
        if self.system.corrects:
            self._correction = self._corrected(world, asked.regime)
            asked = self._asked(world, lengths)
            inputs = search_inputs(asked, Cuts())
            current = forecast_of(inputs, world.plan, self._running)
        self._compare(world, current)
        others = [plan_resources(asked).best] + (flips(inputs, current) if self.system.elastic else [])
        decision = self._loop.decide(self._judged(comparisons_with(current, others, self._facts(world))))
        self.round_s.append(time.process_time() - began)
        self.decisions.append(decision)
        self._loop.apply(decision)

    def begin(self, decision: Decision) -> None:
        """As the loop's mover."""
        self._running = decision.candidate
        self._mover.move(self._running.plan, self._tier(decision.current.plan, self._running.plan))
        self._world.stream(self._running.streamed)

    def outcome(self) -> TransitionOutcome | None:
        """As the loop's mover."""
        return self._mover.outcome()

    def _facts(self, world: World) -> ReplanFacts:
        return self._loop.facts(world.version, self.study.steps - world.version)

    def _judged(self, comparisons: list[PlanComparison]) -> list[PlanComparison]:
        """Forecasts for trajectories that are known are hardly off, whatever was measured."""
        if not self.system.lengths_known:
            return comparisons
        return [replace(one, forecast_error=_KNOWN, forecast_bias=None) for one in comparisons]

    def _asked(self, world: World, lengths: LengthTable) -> PlanningProblem:
        """No round proposes a mixed fleet or the other mode, so neither is searched for."""
        asked = problem(self.study, self.system, lengths, active=world.plan, correction=self._correction)
        return replace(asked, router=None, regime=replace(asked.regime, modes=(self.start.candidate.mode,)))

    def _tier(self, now: Plan, then: Plan) -> Tier:
        """With a hybrid pool, replicas of the same shape change sides whatever the core's size is."""
        tier = tier_of(now, then) or Tier.FLIP
        same_shape = (now.train.tp, now.train.pp, now.train.cp) == (then.train.tp, then.train.pp, then.train.cp)
        same_degrees = {tp for tp, _ in now.rollout.engines} == {tp for tp, _ in then.rollout.engines}
        return Tier.FLIP if self.system.elastic and same_shape and same_degrees else tier

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
        first = max(self._loop.past.switched_at or 0, world.version - _TRAINED_STEPS)
        steps = world.state.groups.step
        trained = np.repeat((steps >= first) & (steps < world.version), self.study.group_size)
        tokens = world.trajectories.total_tokens[: trained.size][trained]
        lost = regime.streamed_loss if world.pacing.streamed else 1.0
        believed_s = lost * believed_train_s(self.study, at_work(world.plan)[0], tokens, world.version - first)
        return float(world.state.steps.train_s[first : world.version].mean()) / believed_s

    def _compare(self, world: World, current: Candidate) -> None:
        """With this round's forecast of the plan that ran: the one before was made for other lengths."""
        if self._seen is not None:
            version, then_s = self._seen
            self._loop.compare(current.forecast.t_iter_s, (world.now_s - then_s) / (world.version - version))
        self._seen = world.version, world.now_s


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
