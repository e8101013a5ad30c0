from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.costs.api import EngineLimits, RequestTable
from libra_core.types.laws import EngineLaw

DECODE_ONLY = EngineLaw(a_s=7e-3, b_s=4e-5, c_s=1.3e-8, prefill_b_s_per_token=0.0, kv_tokens=10**9)
STEP = replace(DECODE_ONLY, prefill_a_s=5e-3, prefill_b_s_per_token=3e-5, prefill_c_s_per_token2=4e-10)
ROOMY = EngineLimits(kv_tokens=1e9, max_num_seqs=10_000)
lengths = st.lists(st.integers(1, 300), min_size=1, max_size=12)


def simulated(generated: list[int], prompts: list[int], step: EngineLaw, seats: int) -> float:
    """List schedule in the order given: a free seat takes the next request; every step serves all seated ones."""
    waiting = list(zip(generated, prompts, strict=True))
    running: list[list[int]] = []
    clock = 0.0
    while waiting or running:
        while waiting and len(running) < seats:
            length, prompt = waiting.pop(0)
            running.append([length, prompt])
        clock += step.step_s(len(running), sum(context for _, context in running))
        running = [[left - 1, context + 1] for left, context in running if left > 1]
    return clock


@settings(deadline=None, max_examples=60)
@given(generated=lengths)
def test_closed_form_equals_the_steps_one_by_one(generated: list[int]) -> None:
    prompts = [50 + 7 * place for place in range(len(generated))]
    table = RequestTable(prompts, generated)
    stepped = simulated(generated, prompts, DECODE_ONLY, seats=len(generated))
    assert table.makespan_s(0, len(generated) - 1, DECODE_ONLY, ROOMY) == pytest.approx(stepped, rel=1e-3)


@settings(deadline=None, max_examples=60)
@given(generated=lengths, seats=st.integers(1, 6))
def test_a_capped_engine_is_never_forecast_faster_than_its_list_schedule(generated: list[int], seats: int) -> None:
    prompts = [10] * len(generated)
    forecast = RequestTable(prompts, generated).makespan_s(
        0, len(generated) - 1, DECODE_ONLY, EngineLimits(kv_tokens=1e9, max_num_seqs=seats)
    )
    assert forecast >= 0.999 * simulated(sorted(generated), prompts, DECODE_ONLY, seats)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_makespan_never_falls_when_a_request_is_added(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 7))
    draw = st.lists(st.integers(0, 2000), min_size=size, max_size=size)
    prompts, generated, tools = (data.draw(draw) for _ in range(3))
    table = RequestTable(prompts, [length + 1 for length in generated], tools, [place % 3 for place in range(size)])
    limits = EngineLimits(kv_tokens=data.draw(st.integers(500, 20_000)), max_num_seqs=data.draw(st.integers(1, 6)))
    for first in range(size):
        for last in range(first, size):
            here = table.makespan_s(first, last, STEP, limits)
            if last + 1 < size:
                assert table.makespan_s(first, last + 1, STEP, limits) >= here * (1 - 1e-12)
            if first:
                assert table.makespan_s(first - 1, last, STEP, limits) >= here * (1 - 1e-12)


def test_arrays_of_intervals_equal_single_ones() -> None:
    rng = np.random.default_rng(3)
    table = RequestTable(rng.integers(10, 500, 40), rng.integers(1, 4000, 40), rng.integers(0, 900, 40), rng.random(40))
    limits = EngineLimits(kv_tokens=9_000, max_num_seqs=7)
    first, last = np.array([0, 5, 39, 12]), np.array([39, 5, 39, 30])
    together = table.makespans_s(first, last, STEP, limits)
    assert together == pytest.approx([table.makespan_s(i, j, STEP, limits) for i, j in zip(first, last, strict=True)])


def test_one_request_of_forty_thousand_tokens_takes_its_own_steps() -> None:
    table = RequestTable([1000], [40_000])
    assert table.makespan_s(0, 0, STEP, ROOMY) >= 40_000 * STEP.step_s(1, 1000)


def test_a_request_beyond_the_cache_never_finishes() -> None:
    table = RequestTable([1000, 1000], [100, 9000])
    limits = EngineLimits(kv_tokens=8_000, max_num_seqs=8)
    assert np.isfinite(table.makespan_s(0, 0, STEP, limits))
    assert table.makespan_s(0, 1, STEP, limits) == np.inf


def test_tool_returns_and_turns_cost_prefill_and_their_time() -> None:
    plain = RequestTable([1000], [500]).makespan_s(0, 0, STEP, ROOMY)
    agentic = RequestTable([1000], [500], tool_tokens=[4000], tool_s=[30.0], turns=[5]).makespan_s(0, 0, STEP, ROOMY)
    assert agentic >= plain + 30.0 + 4 * STEP.prefill_a_s + 4000 * STEP.prefill_b_s_per_token


def test_requests_are_sorted_stably_and_remember_their_place() -> None:
    table = RequestTable([1, 2, 3], [30, 10, 30])
    assert table.order.tolist() == [1, 0, 2]
    assert table.generated_tokens.tolist() == [10, 30, 30]
