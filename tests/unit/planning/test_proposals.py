"""Moves of a running plan, and a controller that follows them under noise."""

from dataclasses import replace

import numpy as np
import pytest

from libra_core.errors import ConfigError
from libra_core.planning.candidates import SearchInputs, search_inputs
from libra_core.planning.decision import PastComparisons, PlanComparison, ReplanPolicy, tier_of
from libra_core.planning.experience import CostBook, ErrorBook
from libra_core.planning.lengths import LengthTable
from libra_core.planning.problem import Cluster, PlanningProblem
from libra_core.planning.proposals import ReplanFacts, at_work, choose, flips, forecast_of, propose, propose_in_run
from libra_core.planning.training_tree import Cuts
from libra_core.types.decision import Reason, Verdict
from libra_core.types.forecast import Candidate, Mode, Term
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from libra_core.types.transition import Tier, TransitionCost
from support.planning import STUDY, PlainTrainer, costs, heavy_tailed, problem

GPUS = 32
CHEAP = TransitionCost(start_s=1.0)
BOOKS = ReplanFacts(
    step=40, steps_left=160, costs=CostBook(priors=dict.fromkeys(Tier, TransitionCost(start_s=15.0))), errors=ErrorBook()
)


def running(*, training: int = 0, hybrids: int = 2, engines: int = 4, tp: int = 4, dp: int = 4) -> Plan:
    """Replicas of 4 GPUs."""
    rollout = RolloutLayout(engines=((tp, engines),))
    return Plan(train=TrainLayout(tp=4, dp=dp), rollout=rollout, hybrid_replicas=hybrids, hybrids_training=training)


def small(lengths: LengthTable | None = None, **changes: object) -> PlanningProblem:
    fields = {"group_size": 8, "cluster": Cluster(num_gpus=GPUS), "lengths": lengths or heavy_tailed(128)}
    return problem(GPUS, 128, **(fields | changes))


def inputs(lengths: LengthTable | None = None, **changes: object) -> SearchInputs:
    return search_inputs(small(lengths, **changes), Cuts())


def as_is(of: Plan, on: SearchInputs) -> Candidate:
    """The running plan as a candidate; only mode and kind of step of the example matter."""
    return forecast_of(on, of, EXAMPLE)


EXAMPLE = Candidate(
    mode=Mode.ASYNCHRONOUS,
    streamed=True,
    plan=running(),
    slots_per_engine=(),
    forecast=None,  # type: ignore[arg-type]
)


def test_a_hybrid_that_trains_is_a_replica_more_and_its_engines_less() -> None:
    train, rollout = at_work(running(training=1, engines=8, tp=2))
    assert (train.dp, rollout.engines) == (5, ((2, 6),))


@pytest.mark.parametrize("plan", [running(training=4, hybrids=4), running(training=1, tp=8, engines=2)])
def test_hybrids_that_cannot_leave_the_fleet_are_refused(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="cannot leave engines"):
        at_work(plan)


def test_flips_cover_every_other_number_of_training_hybrids() -> None:
    on = inputs()
    found = flips(on, as_is(running(training=1), on))
    assert [item.plan.hybrids_training for item in found] == [0, 2]
    assert all(item.plan.num_gpus == GPUS for item in found)


def test_a_training_hybrid_relaxes_the_trainer_and_loads_the_fleet() -> None:
    on = inputs()
    now = as_is(running(), on)
    joined = forecast_of(on, running(training=1), now)
    assert joined.forecast.t_train_s < now.forecast.t_train_s
    assert joined.forecast.t_rollout_s > now.forecast.t_rollout_s


def test_the_plan_is_the_same_candidate_as_in_the_search() -> None:
    from libra_core.planning.joint_search import plan_resources

    asked = small()
    best = plan_resources(asked).best
    again = forecast_of(search_inputs(asked, Cuts()), best.plan, best)
    assert again.forecast.t_iter_s == pytest.approx(best.forecast.t_iter_s, rel=1e-9)


def follow(policy: ReplanPolicy, *, known_error: float | None = None) -> tuple[int, float]:
    """Switches and seconds of 100 steps in which each look sees another sample of the lengths. The truth is their pool."""
    random = np.random.default_rng(1)
    past, plan, errors, switches, spent_s = PastComparisons(), running(training=1), ErrorBook(), 0, 0.0
    true_s = {item.plan: item.forecast.t_iter_s for item in (as_is(plan, TAIL), *flips(TAIL, as_is(plan, TAIL)))}
    for step in range(100):
        spent_s += true_s[plan]
        if step % 5:
            continue
        seen = tail(heavy_tailed(96, seed=int(random.integers(1 << 30))))
        current = as_is(plan, seen)
        errors = errors.including(current.forecast.t_iter_s, true_s[plan])
        error = errors.error if known_error is None else known_error
        comparisons = [
            PlanComparison(step=step, steps_left=100 - step, current=current, candidate=other, cost=CHEAP, forecast_error=error)
            for other in flips(seen, current)
        ]
        decision = choose(comparisons, policy, past)
        past = past.after(decision)
        if decision.verdict is Verdict.SWITCH:
            plan, switches, spent_s = decision.candidate.plan, switches + 1, spent_s + CHEAP.total_s
    return switches, spent_s


def tail(lengths: LengthTable) -> SearchInputs:
    """Synchronous, with a trainer slow enough that the best split hangs on the sample that was seen."""
    trainer = PlainTrainer(seconds_per_token=3 * PlainTrainer().seconds_per_token)
    return inputs(lengths, staleness=0, costs=costs(trainer))


TAIL = tail(heavy_tailed(4096, seed=99))


def test_a_long_tail_that_makes_the_trainer_wait_moves_hardly_anything() -> None:
    now = as_is(running(training=1), TAIL).forecast
    assert now.terms.binding is Term.SLOWEST_TRAJECTORY
    switches, spent_s = follow(ReplanPolicy(horizon_steps=50, cooldown_steps=10))
    assert switches <= 2
    assert spent_s <= 100 * now.t_iter_s * 1.001


def test_a_rule_that_believes_every_forecast_shifts_gpus_back_and_forth_there() -> None:
    """That the claim above is not empty: the same moves without error bound, cooldown, hysteresis and margin."""
    policy = ReplanPolicy(horizon_steps=50, cooldown_steps=0, hysteresis=0.0, margin=0.0)
    assert follow(policy, known_error=0.0)[0] > 4


def test_a_flip_that_pays_is_found_when_the_trainer_binds() -> None:
    asked = small(staleness=4, age_slack=1)
    trainer = PlainTrainer(seconds_per_token=6 * PlainTrainer().seconds_per_token)
    asked = replace(asked, costs=replace(asked.costs, trainer=trainer.law))
    comparisons = propose(asked, EXAMPLE, BOOKS)
    assert comparisons[0].current.forecast.terms.binding is Term.TRAINER
    decision = choose(comparisons, ReplanPolicy(), PastComparisons())
    assert (decision.verdict, decision.tier) == (Verdict.SWITCH, Tier.FLIP)
    assert decision.candidate.plan.hybrids_training == 2
    assert decision.horizon_steps == 160


def rollout_degrees(plan: Plan, *degrees: int, **changes: object) -> list[Plan]:
    """What a session proposes to run instead, when engines may have these degrees."""
    comparisons = propose_in_run(small(rollout_degrees=degrees, **changes), plan, BOOKS, streamed=True)
    return [comparison.candidate.plan for comparison in comparisons]


def test_every_other_degree_takes_all_gpus_beside_the_trainer() -> None:
    plan = running(hybrids=0, tp=4)
    found = rollout_degrees(plan, 1, 2, 4, 8)
    assert [dict(other.rollout.engines) for other in found] == [{1: 16}, {2: 8}, {8: 2}]
    assert {other.train for other in found} == {plan.train}
    assert {tier_of(plan, other) for other in found} == {Tier.REPARTITION}


def test_engines_stay_where_some_belong_to_hybrids_or_no_other_degree_is_asked_for() -> None:
    flipped = rollout_degrees(running(hybrids=2, tp=4), 1, 2, 4, 8)
    assert {other.rollout for other in flipped} == {running().rollout}
    assert rollout_degrees(running(hybrids=0, tp=4), 4) == []


def test_a_degree_whose_cache_holds_no_longest_trajectory_is_not_proposed() -> None:
    table = {tp: (*row[:4], 30_000 * tp) for tp, row in STUDY.items()}
    found = rollout_degrees(running(hybrids=0, tp=4), 1, 2, 4, costs=costs(table=table))
    assert [dict(other.rollout.engines) for other in found] == [{2: 8}]


def test_gpus_that_a_degree_leaves_idle_are_used_again_by_the_next() -> None:
    """Three GPUs of a node beside the trainer: one engine of tp 2 wastes one, three of tp 1 do not."""
    cluster = Cluster(num_gpus=7, gpus_per_node=8)
    plan = replace(running(hybrids=0, tp=1, engines=3), train=TrainLayout(tp=4))
    asked = {"cluster": cluster, "costs": costs()}
    (there,) = rollout_degrees(plan, 1, 2, **asked)
    assert dict(there.rollout.engines) == {2: 1}
    (back,) = rollout_degrees(there, 1, 2, **asked)
    assert dict(back.rollout.engines) == {1: 3}


def test_a_repartition_that_pays_must_win_twice_and_costs_what_its_kind_cost() -> None:
    """Engines of tp 1 decode long trajectories slowly; at η = 0 the slowest one sets the iteration's time."""
    plan = running(hybrids=0, tp=1, engines=16)
    book = BOOKS.costs.including(Tier.REPARTITION, TransitionCost(start_s=30.0))
    comparisons = propose_in_run(
        small(staleness=0, rollout_degrees=(1, 4)), plan, replace(BOOKS, costs=book, errors=ErrorBook()), streamed=True
    )
    first = choose(comparisons, ReplanPolicy(), PastComparisons())
    assert (first.verdict, first.reason, first.cost.total_s) == (Verdict.KEEP, Reason.NOT_PERSISTENT, 30.0)
    second = choose(comparisons, ReplanPolicy(), PastComparisons().after(first))
    assert (second.verdict, second.tier) == (Verdict.SWITCH, Tier.REPARTITION)
    assert dict(second.candidate.plan.rollout.engines) == {4: 4}


def test_looks_compare_both_plans_under_the_newest_lengths_with_the_cost_of_their_kind() -> None:
    costs = BOOKS.costs.including(Tier.FLIP, TransitionCost(drain_s=3.0))
    longer = small(heavy_tailed(128, scale=2.0))
    comparisons = propose(
        longer, as_is(running(), inputs()), replace(BOOKS, costs=costs, errors=ErrorBook().including(12.0, 10.0))
    )
    assert [comparison.candidate.plan.hybrids_training for comparison in comparisons[:2]] == [1, 2]
    assert [comparison.cost.total_s for comparison in comparisons] == [3.0, 3.0, 15.0]
    assert {comparison.current.forecast.t_iter_s for comparison in comparisons} == {
        as_is(running(), search_inputs(longer, Cuts())).forecast.t_iter_s
    }
    assert [comparison.forecast_error for comparison in comparisons] == pytest.approx([0.2] * 3)


def test_a_mixed_fleet_that_runs_is_refused_in_a_sentence() -> None:
    mixed = replace(running(), rollout=RolloutLayout(engines=((2, 2), (4, 3))))
    with pytest.raises(ConfigError, match="of several degrees have no forecast"):
        propose(small(), replace(EXAMPLE, plan=mixed), BOOKS)
