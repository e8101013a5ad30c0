"""What to compare in a replanning round: the plan that runs, forecast under the newest profile, and the moves away from it.

Homogeneous fleets only; a mixed fleet that runs has no moves here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf, isfinite

from libra_core.errors import ConfigError
from libra_core.planning.candidates import Choice, SearchInputs, candidate_of, options_of, search_inputs
from libra_core.planning.decision import PastComparisons, PlanComparison, ReplanPolicy, decide, tier_of
from libra_core.planning.experience import CostBook, ErrorBook
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.objective import solve
from libra_core.planning.placement import most_engines
from libra_core.planning.problem import PlanningProblem
from libra_core.planning.training_tree import Cuts, TrainLeaf, of_fullest_replica, shape_in
from libra_core.types.decision import Decision, Verdict
from libra_core.types.forecast import Candidate, Mode
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from libra_core.types.transition import Tier, TransitionCost


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanFacts:
    """What a round needs besides the problem."""

    step: int
    steps_left: int
    costs: CostBook
    errors: ErrorBook
    grounding: str = "datasheet"
    kind_of: Callable[[Plan, Plan], Tier | None] = tier_of
    """Whose measured costs a move is expected to have."""


def propose(problem: PlanningProblem, current: Candidate, facts: ReplanFacts) -> list[PlanComparison]:
    """The running plan under the problem's profile, against every flip of its hybrids and against the best plan of the search.

    Raises:
        ConfigError: the running plan's fleet is mixed.
        ResourceError: nothing is feasible.
    """
    asked = replace(problem, active=current.plan)
    inputs = search_inputs(asked, Cuts())
    now = forecast_of(inputs, current.plan, current)
    return comparisons_with(now, (*flips(inputs, now), plan_resources(asked).best), facts)


def propose_in_run(problem: PlanningProblem, plan: Plan, facts: ReplanFacts, *, streamed: bool) -> list[PlanComparison]:
    """The running plan against every flip of its hybrids and every re-partition of its engines; none where nothing can move.

    What a session carries out: the split and the training layout stay, and so do the engines where hybrids are among them.

    Raises:
        ConfigError: the running plan's fleet is mixed.
    """
    inputs = search_inputs(replace(problem, active=plan), Cuts())
    now = forecast_as(inputs, plan, mode=Mode.ASYNCHRONOUS, streamed=streamed)
    return comparisons_with(now, (*flips(inputs, now), *repartitions(inputs, now)), facts)


def comparisons_with(now: Candidate, others: Iterable[Candidate], facts: ReplanFacts) -> list[PlanComparison]:
    """One comparison for each move away from what runs."""
    return [
        PlanComparison(
            step=facts.step,
            steps_left=facts.steps_left,
            current=now,
            candidate=other,
            cost=facts.costs.expected(tier) if (tier := facts.kind_of(now.plan, other.plan)) else TransitionCost(),
            forecast_error=facts.errors.error,
            forecast_bias=facts.errors.bias,
            error_measured=facts.errors.measured,
            grounding=facts.grounding,
        )
        for other in others
    ]


def at_work(plan: Plan) -> tuple[TrainLayout, RolloutLayout]:
    """What trains and what serves while some hybrids train: more replicas, fewer engines.

    Raises:
        ConfigError: when a replica's GPUs are no whole number of engines, or hybrids would take every engine.
    """
    if not plan.hybrids_training:
        return plan.train, plan.rollout
    (tp, count), *others = plan.rollout.engines
    each = plan.train.replica_gpus
    taken = plan.hybrids_training * each // tp
    if others or each % tp or taken >= count:
        raise ConfigError(
            f"{plan.hybrids_training} hybrid replicas of {each} GPUs cannot leave engines {dict(plan.rollout.engines)}: "
            "one degree that divides a replica's GPUs, and an engine that stays, are needed"
        )
    return replace(plan.train, dp=plan.train.dp + plan.hybrids_training), RolloutLayout(engines=((tp, count - taken),))


def forecast_of(inputs: SearchInputs, plan: Plan, like: Candidate) -> Candidate:
    """The plan run in the way of `like`, under the bench's lengths and costs."""
    return forecast_as(inputs, plan, mode=like.mode, streamed=like.streamed)


def forecast_as(inputs: SearchInputs, plan: Plan, *, mode: Mode, streamed: bool) -> Candidate:
    """The plan run in this way, under the bench's lengths and costs."""
    layout, rollout = at_work(plan)
    if len(rollout.engines) != 1:
        raise ConfigError(f"engines {dict(rollout.engines)} of several degrees have no forecast here; keep or replan by hand")
    shape = shape_in(inputs.problem.train_shape, layout)
    estimate = inputs.problem.costs.trainer.estimate(shape, of_fullest_replica(inputs.load, layout.dp))
    leaf = TrainLeaf(
        layout=layout,
        t_train_s=estimate.t_train_s,
        fixed_s=estimate.parts.optimizer_s + estimate.parts.dp_exposed_s,
        bytes_per_gpu=estimate.memory.total_bytes,
    )
    ((tp, engines),) = rollout.engines
    choice = Choice(
        leaf=leaf,
        tp=tp,
        engines=engines,
        streamed=streamed,
        mode=mode,
        publication_s=inputs.problem.costs.publication_s(shape, {tp: engines}),
    )
    solved = candidate_of(inputs, choice, solve(options_of([choice]), inputs.curves, inputs.problem.regime), 0)
    return replace(solved, plan=plan)


def flips(inputs: SearchInputs, current: Candidate) -> list[Candidate]:
    """The same plan with every other number of its hybrids training that leaves an engine."""
    moves: list[Candidate] = []
    for training in range(current.plan.hybrid_replicas + 1):
        plan = replace(current.plan, hybrids_training=training)
        if training != current.plan.hybrids_training and _possible(plan):
            moves.append(forecast_of(inputs, plan, current))
    return moves


def repartitions(inputs: SearchInputs, current: Candidate) -> list[Candidate]:
    """The same plan with engines of each other degree on all GPUs beside the trainer, where the bench has that degree.

    None with hybrid replicas: their engines keep the degree that divides a replica's GPUs, and a mixed fleet has no forecast.
    """
    plan, cluster = current.plan, inputs.problem.cluster
    if plan.hybrid_replicas:
        return []
    engines = {tp: most_engines(cluster, plan.train, tp) for tp in inputs.curves if tp not in dict(plan.rollout.engines)}
    layouts = [RolloutLayout(engines=((tp, count),)) for tp, count in engines.items() if count]
    return [forecast_of(inputs, replace(plan, rollout=layout), current) for layout in layouts]


def choose(comparisons: Iterable[PlanComparison], policy: ReplanPolicy, past: PastComparisons) -> Decision:
    """Of all moves the cheapest kind that pays, the best of its kind; when none pays, the one with the largest gain.

    Raises:
        ValueError: without any comparison.
    """
    decisions = [decide(comparison, policy, past) for comparison in comparisons]
    paying = [decision for decision in decisions if decision.verdict is Verdict.SWITCH]
    if paying:
        return min(paying, key=lambda decision: (decision.cost.total_s, -decision.gain_s_per_step))
    return max(decisions, key=lambda decision: decision.gain_s_per_step if isfinite(decision.gain_s_per_step) else -inf)


def _possible(plan: Plan) -> bool:
    try:
        at_work(plan)
    except ConfigError:
        return False
    return True
