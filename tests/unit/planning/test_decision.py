"""When the plan changes and when it does not (docs/elasticity.md#replanning)."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.planning.decision import PastComparisons, ReplanPolicy, decide, tier_of
from libra_core.planning.proposals import choose
from libra_core.types.decision import Reason, Verdict
from libra_core.types.forecast import Term
from libra_core.types.plan import TrainLayout
from libra_core.types.transition import Tier
from support.decisions import candidate, comparison, plan

POLICY = ReplanPolicy(horizon_steps=200, margin=0.2, cooldown_steps=20)
SERVING, TRAINING = plan(), plan(training=1)
SLOW, FAST = candidate(SERVING, 20.0), candidate(TRAINING, 18.0)
NEVER = PastComparisons()


def test_two_seconds_a_step_do_not_repay_a_minute_in_twenty_steps() -> None:
    decision = decide(comparison(SLOW, FAST), replace(POLICY, horizon_steps=20), NEVER)
    assert (decision.verdict, decision.reason, decision.saved_s) == (Verdict.KEEP, Reason.NOT_REPAID, pytest.approx(40.0))


def test_they_do_in_two_hundred() -> None:
    decision = decide(comparison(SLOW, FAST), POLICY, NEVER)
    assert (decision.verdict, decision.reason, decision.saved_s) == (Verdict.SWITCH, Reason.PAYS, pytest.approx(400.0))


def test_the_horizon_ends_with_the_run() -> None:
    decision = decide(comparison(SLOW, FAST, steps_left=20), POLICY, NEVER)
    assert (decision.reason, decision.horizon_steps) == (Reason.NOT_REPAID, 20)


def test_savings_must_exceed_the_cost_by_the_margin() -> None:
    at_margin = comparison(SLOW, FAST, cost_s=400.0 / 1.2)
    assert decide(at_margin, POLICY, NEVER).reason is Reason.NOT_REPAID
    assert decide(comparison(SLOW, FAST, cost_s=332.0), POLICY, NEVER).reason is Reason.PAYS


def test_a_gain_below_the_forecasts_error_is_noise() -> None:
    decision = decide(comparison(SLOW, candidate(TRAINING, 18.5), cost_s=0.0), POLICY, NEVER)
    assert decision.reason is Reason.BELOW_ERROR


def test_a_plan_just_left_must_win_by_more() -> None:
    past = PastComparisons(switched_at=0, left=TRAINING)
    assert decide(comparison(SLOW, FAST), POLICY, past).reason is Reason.BELOW_ERROR
    assert decide(comparison(SLOW, candidate(TRAINING, 17.5)), POLICY, past).reason is Reason.PAYS


def test_nothing_moves_within_the_cooldown() -> None:
    past = PastComparisons(switched_at=90)
    assert decide(comparison(SLOW, FAST, step=109), POLICY, past).reason is Reason.COOLDOWN
    assert decide(comparison(SLOW, FAST, step=110), POLICY, past).reason is Reason.PAYS


def test_a_move_that_leaves_the_binding_term_is_refused_whatever_it_promises() -> None:
    waiting = candidate(SERVING, 20.0, binding=Term.SLOWEST_TRAJECTORY)
    promise = replace(waiting.forecast, t_iter_s=10.0)
    decision = decide(comparison(waiting, replace(waiting, plan=TRAINING, forecast=promise)), POLICY, NEVER)
    assert (decision.reason, decision.binding) == (Reason.BINDING_STAYS, Term.SLOWEST_TRAJECTORY)


def test_without_a_forecast_nothing_moves() -> None:
    blind = replace(SLOW, forecast=replace(SLOW.forecast, t_iter_s=math.nan))
    assert decide(comparison(blind, FAST), POLICY, NEVER).reason is Reason.NO_FORECAST


def test_the_same_plan_is_no_move() -> None:
    decision = decide(comparison(SLOW, candidate(SERVING, 1.0)), POLICY, NEVER)
    assert (decision.reason, decision.tier) == (Reason.SAME_PLAN, None)


def test_a_repartition_must_win_twice_in_a_row() -> None:
    other = candidate(plan(engines=3, tp=2), 10.0)
    first = decide(comparison(SLOW, other, step=0), POLICY, NEVER)
    assert (first.reason, first.tier) == (Reason.NOT_PERSISTENT, Tier.REPARTITION)
    past = NEVER.after(first)
    assert decide(comparison(SLOW, other, step=20), POLICY, past).verdict is Verdict.SWITCH
    interrupted = past.after(decide(comparison(SLOW, candidate(TRAINING, 19.9)), POLICY, past))
    assert decide(comparison(SLOW, other, step=40), POLICY, interrupted).reason is Reason.NOT_PERSISTENT


def test_a_repartition_is_held_to_what_does_not_even_out_over_its_looks_and_a_flip_to_the_error_of_one() -> None:
    """8 % of scatter leave 5.7 % over two looks, so that a gain of 6.5 % is one; unless the forecasts are biased by more."""
    ready = PastComparisons(streak=1)
    repartition = replace(comparison(SLOW, candidate(plan(engines=3, tp=2), 18.7)), forecast_bias=-0.02)
    assert decide(repartition, POLICY, ready).reason is Reason.PAYS
    assert decide(repartition, replace(POLICY, persistence_rounds=1), ready).reason is Reason.BELOW_ERROR
    assert decide(replace(repartition, forecast_bias=-0.07), POLICY, ready).reason is Reason.BELOW_ERROR
    assert decide(replace(repartition, forecast_bias=None), POLICY, ready).reason is Reason.BELOW_ERROR
    flip = replace(comparison(SLOW, candidate(TRAINING, 18.7)), forecast_bias=0.0)
    assert decide(flip, POLICY, ready).reason is Reason.BELOW_ERROR


def test_profiles_that_alternate_switch_at_most_once_per_cooldown() -> None:
    """Each look sees the other plan twice as fast, for free: the worst case for a rule without memory."""
    past, running, switches = NEVER, SERVING, []
    for step in range(0, 200, 5):
        other = TRAINING if running == SERVING else SERVING
        decision = decide(comparison(candidate(running, 20.0), candidate(other, 10.0), step=step, cost_s=0.0), POLICY, past)
        past = past.after(decision)
        if decision.verdict is Verdict.SWITCH:
            running = other
            switches.append(step)
    assert len(switches) > 1
    assert all(after - before >= POLICY.cooldown_steps for before, after in pairwise(switches))


def test_tiers_name_the_dearest_thing_that_moves() -> None:
    assert tier_of(SERVING, TRAINING) is Tier.FLIP
    assert tier_of(SERVING, plan(engines=5)) is Tier.REPARTITION
    assert tier_of(SERVING, plan(dp=3, engines=5, training=1)) is Tier.RELAYOUT
    assert tier_of(SERVING, replace(SERVING, train=TrainLayout(dp=2, micro_batch_tokens=8192))) is None


def test_the_cheapest_kind_that_pays_is_chosen() -> None:
    flip = comparison(SLOW, FAST, cost_s=5.0)
    rebuild = comparison(SLOW, candidate(plan(engines=3, tp=2), 10.0), cost_s=60.0)
    ready = PastComparisons(streak=5)
    assert choose([rebuild, flip], POLICY, ready).tier is Tier.FLIP
    dear = replace(flip, candidate=candidate(TRAINING, 19.9))
    assert choose([rebuild, dear], POLICY, ready).tier is Tier.REPARTITION
    assert choose([dear, rebuild], POLICY, NEVER).reason is Reason.NOT_PERSISTENT


@given(
    gain=st.floats(-20.0, 19.0),
    cost=st.floats(0.0, 1000.0),
    horizon=st.integers(1, 1000),
    since=st.none() | st.integers(0, 100),
    binding=st.sampled_from(Term),
)
def test_every_switch_repays_and_is_above_the_error(
    gain: float, cost: float, horizon: int, since: int | None, binding: Term
) -> None:
    now, then = candidate(SERVING, 20.0, binding=binding), candidate(TRAINING, 20.0 - gain, binding=binding)
    past = PastComparisons(switched_at=None if since is None else 100 - since)
    decision = decide(comparison(now, then, cost_s=cost), replace(POLICY, horizon_steps=horizon), past)
    if decision.verdict is Verdict.SWITCH:
        assert gain * horizon > cost * 1.2
        assert gain > 0.08 * 20.0
        assert since is None or since >= POLICY.cooldown_steps
    else:
        assert decision.reason is not Reason.PAYS


def test_of_moves_that_do_not_pay_one_without_a_forecast_is_not_the_answer() -> None:
    comparisons = [comparison(SLOW, candidate(TRAINING, seconds)) for seconds in (math.nan, 19.5, 19.9)]
    assert choose(comparisons, POLICY, NEVER).gain_s_per_step == pytest.approx(0.5)


def test_plans_that_differ_only_in_who_could_change_sides_are_no_move() -> None:
    assert tier_of(plan(), replace(plan(), hybrid_replicas=1)) is None
