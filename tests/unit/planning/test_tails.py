"""Expected maxima come from the whole history: rare, long trajectories count, however many others are stored beside them."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libra_core.planning.confusion import ORACLE
from libra_core.planning.latency import Latencies, latency_curve, loaded_engine
from libra_core.planning.lengths import LengthTable, table_of
from libra_core.planning.mixed import fleet_classes
from libra_core.planning.rollout_partition import EngineShare, Partition
from support.planning import problem

HANG_S = 1800.0
BATCH = 768


def history(generated: np.ndarray, *, hangs: int = 0) -> LengthTable:
    """Trajectories of so many generated tokens; the first ones wait for a tool that hangs."""
    count = generated.size
    tool_s = np.full(count, 5.0)
    tool_s[:hangs] = HANG_S
    columns = (generated, np.full(count, 4.0), np.full(count, 500.0), np.full(count, 800.0), tool_s)
    return table_of(np.stack([*columns, generated * 300.0, generated * (1000.0 + generated / 2)], axis=1), np.ones(count))


def lognormal(count: int, seed: int = 0) -> np.ndarray:
    return np.minimum(np.round(np.random.default_rng(seed).lognormal(7.6, 0.7, count)), 32_000.0)


def pareto(count: int, seed: int = 0) -> np.ndarray:
    return np.round(400.0 * (1.0 + np.random.default_rng(seed).pareto(1.3, count)))


def direct(values: np.ndarray, weight: np.ndarray, draws: int) -> float:
    """E[max] by its definition, over every row."""
    order = np.argsort(values)
    upto = np.cumsum(weight[order])
    return float(values[order] @ np.diff((upto / upto[-1]) ** draws, prepend=0.0))


@pytest.mark.parametrize("count", [1_000, 4_000, 20_000])
def test_two_hangs_count_as_they_do_in_a_direct_computation_on_the_whole_history(count: int) -> None:
    table = history(lognormal(count), hangs=2)
    regime = problem(48, BATCH).regime
    law = loaded_engine(problem(48, BATCH).costs.engines, 8, table, regime)
    curve = latency_curve(law, table, regime)
    for row in (0, curve.rate.size // 2, curve.rate.size - 1):
        latencies = law.latencies(curve.rate[row : row + 1], table)[0]
        assert curve.slowest_of_batch[row] == pytest.approx(direct(latencies, table.weight, BATCH), rel=1e-3)
        assert curve.slowest_of_group[row] == pytest.approx(direct(latencies, table.weight, 16), rel=1e-3)
    assert curve.slowest_of_batch[0] > HANG_S * (1 - (1 - 2 / count) ** BATCH), "the chance that one of them is in the batch"


@pytest.mark.parametrize("tail", [lognormal, pareto])
@pytest.mark.parametrize("copies", [2, 10])
def test_the_answer_does_not_depend_on_how_much_of_a_history_is_stored(tail: Callable[[int], np.ndarray], copies: int) -> None:
    generated, regime = tail(4_000), problem(48, BATCH).regime
    costs = problem(48, BATCH).costs.engines
    once, often = history(generated), history(np.tile(generated, copies))
    curves = [latency_curve(loaded_engine(costs, 8, table, regime), table, regime) for table in (once, often)]
    assert curves[0].slowest_of_batch == pytest.approx(curves[1].slowest_of_batch, rel=1e-9)


def test_a_mixed_fleet_sees_the_hangs_too() -> None:
    table, asked = history(lognormal(4_000), hangs=2), problem(48, BATCH)
    shares = (EngineShare(tp=1, first=0, last=191), EngineShare(tp=8, first=192, last=383))
    classes = fleet_classes(Partition(makespan_s=1.0, shares=shares), table, asked.costs.engines, asked.regime, ORACLE)
    assert sum(item.share for item in classes) == pytest.approx(1.0)
    assert sum(float((item.lengths.weight * item.share)[item.lengths.tool_s == HANG_S].sum()) for item in classes) == (
        pytest.approx(2 / 4_000)
    )


@given(
    st.lists(st.tuples(st.floats(1e-3, 1e5), st.floats(1e-6, 1.0)), min_size=1, max_size=40),
    st.integers(1, 2000),
    st.integers(1, 80),
)
@example(rows=[(32895.0, 1e-06), (0.0625, 1.0)], draws=1, copies=2)
def test_bins_change_no_mean_and_no_maximum_by_more_than_their_width(
    rows: list[tuple[float, float]], draws: int, copies: int
) -> None:
    values, weight = (np.tile(np.array(column), 60 * copies) for column in zip(*rows, strict=True))
    values = values * np.linspace(1.0, 1.02, values.size)
    weight = weight / weight.sum()
    found = Latencies.of(values, weight)
    assert found.largest(1).mean == pytest.approx(float(values @ weight), rel=1e-9)
    assert found.largest(draws).mean == pytest.approx(direct(values, weight, draws), rel=np.log(1e8) / 2048 * 1.1)
