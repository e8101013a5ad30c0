"""The account of an iteration names its causes, and its parts add up to the iteration."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.runtime.base.time_breakdown import EngineDelta, IterationTimes, engine_deltas, time_breakdown
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EngineStats, TimeBreakdown
from tests.support.reports import rollout_report

Intervals = list[tuple[float, float]]
intervals = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20)).map(lambda p: (min(p), max(p))), max_size=6)


def breakdown(
    *,
    training: Intervals | None = None,
    waiting: Intervals | None = None,
    publishing: Intervals | None = None,
    age_s: float = 0.0,
    fleet: list[tuple[float, float, float]] | None = None,
    reprefilled: int = 0,
) -> TimeBreakdown:
    """`fleet`: busy, prefill and paused seconds of each engine."""
    times = IterationTimes(
        window=(0.0, 20.0),
        training=training or [],
        waiting=waiting or [],
        waiting_age_s=age_s,
        publishing=publishing or [],
    )
    engines = [
        EngineDelta(busy_s=busy, prefill_s=prefill, paused_s=paused, preemptions=0) for busy, prefill, paused in fleet or []
    ]
    rollout = rollout_report(context_tokens=1000, cached_tokens=500, reprefilled_tokens=reprefilled)
    return time_breakdown(times, engines, rollout)


def test_a_streamed_step_waits_only_while_it_does_not_train() -> None:
    result = breakdown(training=[(2, 5)], waiting=[(0, 10)], publishing=[(12, 13)])
    assert result.trainer_busy_s == 3
    assert result.trainer_waits_groups_s == 7
    assert result.trainer_waits_publication_s == 1
    assert result.trainer_other_s == 9


def test_the_wait_for_a_group_at_its_age_limit_is_named() -> None:
    result = breakdown(waiting=[(0, 10)], age_s=4.0)
    assert (result.trainer_waits_groups_s, result.trainer_waits_age_s) == (6, 4)


def test_engines_are_busy_paused_prefilling_again_or_starved() -> None:
    result = breakdown(fleet=[(10.0, 4.0, 1.0), (14.0, 8.0, 1.0)], reprefilled=250)
    assert result.fleet_starved_s == 7
    assert result.fleet_paused_s == 1
    assert result.fleet_reprefill_s == pytest.approx(3.0)
    assert result.fleet_busy_s == pytest.approx(9.0)


@given(intervals, intervals, intervals, st.floats(0, 30), st.lists(st.tuples(*[st.floats(0, 25)] * 3), max_size=3))
def test_the_parts_add_up(
    training: Intervals, waiting: Intervals, publishing: Intervals, age_s: float, fleet: list[tuple[float, float, float]]
) -> None:
    """Also where publications overlap with training."""
    result = breakdown(training=training, waiting=waiting, publishing=publishing, age_s=age_s, fleet=fleet, reprefilled=100)
    trainer = [value for name, value in parts(result) if name.startswith("trainer")]
    engines = [value for name, value in parts(result) if name.startswith("fleet")]
    assert math.isclose(sum(trainer), 20.0, abs_tol=1e-6)
    assert math.isclose(sum(engines), 20.0, abs_tol=1e-6)
    assert min(*trainer, *engines) > -1e-9


def test_a_replaced_engine_counts_from_its_start() -> None:
    old = {EngineId("a"): stats("a", busy_s=10.0, preemptions=2)}
    deltas = engine_deltas(old, [stats("a", busy_s=13.0, preemptions=2), stats("b", busy_s=1.5, preemptions=1)])
    assert [(delta.busy_s, delta.preemptions) for delta in deltas] == [(3.0, 0), (1.5, 1)]


def parts(result: TimeBreakdown) -> list[tuple[str, float]]:
    return [(name, getattr(result, name)) for name in TimeBreakdown.__dataclass_fields__]


def stats(name: str, *, busy_s: float, preemptions: int) -> EngineStats:
    return EngineStats(
        engine_id=EngineId(name),
        running=0,
        waiting=0,
        kv_usage=0.0,
        policy_version=PolicyVersion(0),
        generated_tokens=0,
        prompt_tokens=0,
        cached_prompt_tokens=0,
        preemptions=preemptions,
        busy_s=busy_s,
    )
