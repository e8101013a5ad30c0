"""Buckets and the cost table."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.errors import ConfigError
from libra_core.routing.buckets import Buckets, buckets_from_lengths
from libra_core.routing.costs import A800_14B, CostTable, table_for
from libra_core.types.laws import EngineLaw
from support.routing import BUCKETS, LENGTHS, costs


@given(st.floats(min_value=1, max_value=20_000))
def test_the_cheapest_bucket_of_a_known_total_is_its_own(total: float) -> None:
    table = costs()
    price = [table.decode_s(bucket, 0, total) for bucket in range(3)]
    assert price[BUCKETS.of(total)] <= min(price) * (1 + 1e-9)


def test_what_is_generated_already_makes_the_rest_urgent() -> None:
    assert costs().decode_s(0, 6000, 100) > costs().decode_s(0, 0, 100)


def test_moving_costs_the_prefill_of_the_context() -> None:
    assert costs().move_s(1, 1000) == pytest.approx(91e-3)


@pytest.mark.parametrize(("bucket", "law"), [(0, A800_14B[1]), (1, A800_14B[2])])
def test_a_filling_engine_slows_down_as_its_law_says(bucket: int, law: EngineLaw) -> None:
    assert costs().slowdown(bucket, 0) == 1.0
    assert costs().slowdown(bucket, 32) == pytest.approx(law.step_s(32, 32 * 8192) / law.a_s)


def test_measured_moves_replace_the_prefill_of_their_degree_alone() -> None:
    table = table_for(BUCKETS, LENGTHS, move_s_per_token={2: 5e-6})
    assert table.move_s(1, 1000) == pytest.approx(5e-3)
    assert table.move_s(0, 1000) == costs().move_s(0, 1000)


def test_limits_are_inclusive() -> None:
    assert [BUCKETS.of(total) for total in (0, 1000, 1001, 4000, 4001, 10**9)] == [0, 0, 1, 1, 2, 2]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_cuts_at_quantiles_always_make_every_bucket(lengths: list[int]) -> None:
    buckets = buckets_from_lengths(lengths, (1, 2, 4, 8))
    assert len(buckets) == 4
    assert list(buckets.limits) == sorted(set(buckets.limits))


@pytest.mark.parametrize(
    ("limits", "words"), [((5.0, 1.0, math.inf), "ascending"), ((1.0, math.inf), "one ascending"), ((1.0, 2.0, 3.0), "infinite")]
)
def test_limits_that_cannot_be_are_refused(limits: tuple[float, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Buckets(degrees=(1, 2, 4), limits=limits)


def test_tables_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 buckets need as many"):
        CostTable(buckets=BUCKETS, step_s=(1.0,), growth=(0.0,), move_s_per_token=(1.0,), lengths=LENGTHS)
    with pytest.raises(ConfigError, match="sorted lengths"):
        table_for(BUCKETS, [])
    with pytest.raises(ConfigError, match="quantiles"):
        buckets_from_lengths([1.0], (1, 2))
    with pytest.raises(ConfigError, match="at least one finished"):
        buckets_from_lengths([], (1,), ())
