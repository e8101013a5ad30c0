"""From a bucket to an engine."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from libra_core.ports.routing import EngineLoad
from libra_core.routing.placement import TieBreaker, bucket_of, is_full
from libra_core.types.ids import EngineId
from support.routing import FLEET, engine

CHI_SQUARE_3_DOF_P001 = 16.27


def test_equal_loads_spread_evenly_over_four_replicas() -> None:
    placement = TieBreaker(seed=3)
    replicas = [engine(f"r{number}", load=5) for number in range(4)]
    counts = Counter(placement.in_bucket(0, None, replicas).engine_id for _ in range(4000))
    chi_square = sum((counts[item.engine_id] - 1000) ** 2 / 1000 for item in replicas)
    assert chi_square < CHI_SQUARE_3_DOF_P001


def test_the_least_loaded_of_the_bucket_is_taken() -> None:
    fleet = [engine("a", load=3), engine("b", load=1), engine("c", 1, load=0)]
    assert TieBreaker(0).in_bucket(0, None, fleet).engine_id == "b"


def test_a_trajectory_in_its_bucket_stays_however_loaded() -> None:
    fleet = [engine("home", load=90, capacity=10), engine("empty")]
    assert TieBreaker(0).in_bucket(0, EngineId("home"), fleet).engine_id == "home"


def test_a_full_bucket_keeps_the_trajectory_where_it_is() -> None:
    fleet = [engine("home"), engine("full", 1, load=4, capacity=4)]
    assert TieBreaker(0).in_bucket(1, EngineId("home"), fleet).engine_id == "home"


def test_without_an_engine_a_full_bucket_gives_way_to_the_next_larger_then_smaller() -> None:
    full = engine("full", 1, load=4, capacity=4)
    assert TieBreaker(0).in_bucket(1, None, [engine("s", 0), full, engine("l", 2)]).engine_id == "l"
    assert TieBreaker(0).in_bucket(1, None, [engine("s", 0), full]).engine_id == "s"
    assert TieBreaker(0).in_bucket(1, None, [full]).engine_id == "full"


def test_an_engine_that_is_gone_has_no_bucket() -> None:
    assert bucket_of(EngineId("lost"), FLEET) is None
    assert bucket_of(EngineId("middle"), FLEET) == 1


loads = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.one_of(st.none(), st.integers(1, 9))), min_size=1, max_size=8)


def _fleet(parts: list[tuple[int, int, int | None]]) -> list[EngineLoad]:
    return [engine(f"e{i}", bucket, load=load, capacity=capacity) for i, (bucket, load, capacity) in enumerate(parts)]


@given(loads, st.integers(0, 2))
def test_a_full_engine_is_taken_only_when_all_are_full(parts: list[tuple[int, int, int | None]], bucket: int) -> None:
    fleet = _fleet(parts)
    chosen = TieBreaker(0).in_bucket(bucket, None, fleet)
    assert not is_full(chosen) or all(is_full(item) for item in fleet)


@given(loads, st.integers(0, 2))
def test_nothing_less_loaded_is_passed_over_in_the_right_bucket(parts: list[tuple[int, int, int | None]], bucket: int) -> None:
    fleet = _fleet(parts)
    chosen = TieBreaker(0).in_bucket(bucket, None, fleet)
    rivals = [item for item in fleet if item.bucket == bucket and not is_full(item)]
    if rivals:
        assert chosen in rivals
        assert chosen.in_flight == min(item.in_flight for item in rivals)
