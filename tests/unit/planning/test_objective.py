"""The vectorised objective against the formula of docs/planner.md#what-is-minimised, written out once more for one candidate."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.planning.candidates import Choice, SearchInputs, options_of, search_inputs
from libra_core.planning.latency import Latencies, backlog_s
from libra_core.planning.lengths import LengthTable
from libra_core.planning.objective import BIAS, Solution, group_term, solve
from libra_core.planning.problem import PlanningProblem, Regime
from libra_core.planning.training_tree import Cuts, TrainLeaf
from libra_core.types.forecast import Mode
from libra_core.types.plan import TrainLayout
from support.planning import STUDY, heavy_tailed, problem

PUBLICATION_S, FIXED_S = 4.0, 4.0


def choice(tp: int, engines: int, train_s: float, *, streamed: bool = False, mode: Mode = Mode.ASYNCHRONOUS) -> Choice:
    leaf = TrainLeaf(layout=TrainLayout(), t_train_s=train_s, fixed_s=FIXED_S, bytes_per_gpu=0.0)
    return Choice(leaf=leaf, tp=tp, engines=engines, streamed=streamed, mode=mode, publication_s=PUBLICATION_S)


def solved(asked: PlanningProblem, one: Choice) -> tuple[SearchInputs, Solution]:
    inputs = search_inputs(asked, Cuts())
    return inputs, solve(options_of([one]), inputs.curves, asked.regime)


def written_out(lengths: LengthTable, regime: Regime, one: Choice) -> float:
    """T of the fixed point, from latencies at each trial T instead of a table."""
    a, b, c, per_token, kv = STUDY[one.tp]
    eta, X, K, E = regime.staleness, regime.age_slack, regime.batch, one.engines
    train = one.leaf.t_train_s * (1.05 if one.streamed else 1.0)
    left = FIXED_S + (train - FIXED_S) * 3 * regime.group_size / K if one.streamed else train
    ctx, w = lengths.mean_context, lengths.weight
    g = float(w @ lengths.generated_tokens)
    prefill = per_token * lengths.prefill_tokens + per_token / 40_000 * lengths.prefill_pairs
    p, tools = float(w @ prefill), float(w @ lengths.tool_s)
    slots, top = int(regime.kv_fill * kv / ctx) + 1, min(regime.max_num_seqs, 0.93 * kv / ctx)
    low, high = 0.05, top
    for _ in range(60):
        B = (low + high) / 2
        decode = g * (a + (b + c * ctx) * B) + p * B
        low, high = (low, B) if B * (decode + p + tools) / decode > slots else (B, high)
    most = low
    fleet = K / E * (g * (a + (b + c * ctx) * most) / most + p) + PUBLICATION_S

    def latencies(window: float) -> np.ndarray:
        rate = K / E / max(window, 1e-6)
        free = 1 - rate * p - rate * g * (b + c * ctx)
        B = min(max(rate * g * a / free if free > 1e-3 else 1e9, 1), most)
        slow = 1 / max(1 - rate * p, 0.05)
        return slow * ((a + (b + c * ctx) * B) * lengths.generated_tokens + prefill) + lengths.tool_s

    def largest(values: np.ndarray, draws: int) -> float:
        return Latencies.of(values, w).largest(draws).mean

    if eta == 0:
        window = bisected(lambda at: largest(latencies(at), K), 1e-3, 1e6)
        latest, groups = largest(latencies(window), K), np.sort(latencies(window))
        share = (np.arange(groups.size) + 1) / groups.size  # equal weights in these cases
        landed = [groups[np.searchsorted(share, u ** (1 / regime.group_size))] for u in (0.02, 0.2, 0.4, 0.6, 0.8)]
        late = [(train - FIXED_S) * (1 - u) - (latest - at) for u, at in zip((0.02, 0.2, 0.4, 0.6, 0.8), landed, strict=True)]
        left = max(left, FIXED_S + max(late)) if one.streamed else left
        return max(fleet, train / BIAS, latest + left + PUBLICATION_S)

    def bound(T: float) -> float:
        slowest = largest(latencies(T - PUBLICATION_S - left / (eta + 1 + X)), K) + left + PUBLICATION_S
        groups = latencies(T - PUBLICATION_S)
        group, width = largest(groups, regime.group_size) + left + PUBLICATION_S, spread(groups, w, regime.group_size)
        kept_up = (group + width / 2) / (eta + 1)
        return max(slowest / (eta + 1 + X), kept_up if width <= kept_up else group / (eta + 0.5))

    floor = max(fleet, train / BIAS)
    return max(floor, bisected(bound, floor, 1e6))


def spread(values: np.ndarray, weight: np.ndarray, draws: int) -> float:
    order = np.argsort(values)
    chance = np.diff(np.minimum(np.cumsum(weight[order]), 1.0) ** draws, prepend=0.0)
    return math.sqrt(12 * np.cov(values[order], aweights=chance, ddof=0))


def bisected(bound: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling `bound(x)` meets x."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if bound(middle) > middle else (low, middle)
    return high


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("eta", "slack"), [(0, 0), (1, 0), (1, 1), (4, 0)])
@pytest.mark.parametrize(("tp", "engines", "train_s"), [(1, 24, 150.0), (4, 6, 150.0), (8, 2, 40.0), (2, 12, 900.0)])
def test_table_of_latencies_agrees_with_the_formula(
    tp: int, engines: int, train_s: float, eta: int, slack: int, streamed: bool
) -> None:
    asked = problem(48, 256, lengths=heavy_tailed(400), staleness=eta, age_slack=slack)
    one = choice(tp, engines, train_s, streamed=streamed)
    _, solution = solved(asked, one)
    assert float(solution.t_iter_s[0]) == pytest.approx(written_out(asked.lengths, asked.regime, one), rel=0.004)


def test_slow_trainer_binds_alone() -> None:
    _, solution = solved(problem(48, 256), choice(8, 3, 5000.0, streamed=True))
    assert solution.terms(0).binding.value == "A"
    assert float(solution.forecast_s[0]) == pytest.approx(5250.0)


def test_few_engines_bind_by_their_throughput() -> None:
    _, solution = solved(problem(48, 256, staleness=4), choice(2, 1, 10.0))
    assert solution.terms(0).binding.value == "B"


def test_twice_the_engines_halve_the_fleet_time() -> None:
    asked = problem(48, 256)
    few, many = (float(solved(asked, choice(2, count, 10.0))[1].fleet_s[0]) - PUBLICATION_S for count in (4, 8))
    assert few == pytest.approx(2 * many)


def test_streamed_step_takes_the_trainer_out_of_the_tail() -> None:
    asked = problem(48, 256)
    whole, streamed = (float(solved(asked, choice(8, 3, 150.0, streamed=kind))[1].slowest_s[0]) for kind in (False, True))
    assert whole - streamed > 30


def test_without_staleness_slack_changes_nothing() -> None:
    times = [float(solved(problem(48, 256, staleness=0, age_slack=X), choice(8, 3, 150.0))[1].t_iter_s[0]) for X in (0, 1)]
    assert times[0] == times[1], "a step needs every group that was admitted"


def test_slack_helps_where_the_slowest_trajectory_binds() -> None:
    strict, slack = (solved(problem(48, 256, staleness=1, age_slack=X), choice(8, 3, 150.0))[1] for X in (0, 1))
    assert strict.terms(0).binding.value == "C"
    assert float(slack.t_iter_s[0]) < float(strict.t_iter_s[0])


def test_trainer_that_takes_groups_as_they_land_is_behind_when_they_land_late() -> None:
    work, latest = np.array([100.0]), np.array([200.0])
    assert backlog_s(work, latest, np.full((1, 5), 200.0))[0] == pytest.approx(98.0), "all but 2 % land with the last one"
    assert backlog_s(work, latest, np.array([[10.0, 30.0, 50.0, 70.0, 90.0]]))[0] == 0.0


def test_colocated_adds_training_to_rollout() -> None:
    asked = problem(48, 256)
    _, solution = solved(asked, choice(8, 6, 100.0, mode=Mode.COLOCATED))
    switch = asked.regime.colocated_switch_s
    assert float(solution.trainer_s[0]) == 100.0 + switch
    assert float(solution.t_iter_s[0]) > 100.0 + switch


def test_slots_hold_the_promised_context() -> None:
    inputs = search_inputs(problem(48, 256), Cuts())
    for tp, curve in inputs.curves.items():
        assert (curve.engine.slots - 1) * curve.engine.context <= 0.7 * STUDY[tp][4]


def test_in_flight_bound_caps_the_slots() -> None:
    inputs = search_inputs(problem(48, 32, staleness=0), Cuts())
    assert inputs.curves[8].engine.slots == 32


@given(
    mean=st.floats(5.0, 400.0),
    width=st.floats(0.0, 1.0).map(lambda share: 1.9 * share),
    staleness=st.integers(1, 4),
)
def test_group_term_is_the_least_step_at_which_enough_groups_are_complete(mean: float, width: float, staleness: int) -> None:
    """Against the sum itself: one batch of the η + 1 in flight is complete when a step starts."""
    taken = mean * (1 + width * (np.arange(4001) / 4000 - 0.5))
    found = float(group_term(np.array([mean]), np.array([width * mean]), staleness)[0])

    def incomplete(step: float) -> float:
        return float(np.mean(np.maximum(np.ceil(taken / step - 1.0), 0.0)))

    assert incomplete(found * 1.002) <= staleness + 0.002
    assert incomplete(found * 0.998) > staleness - 0.002


def test_groups_of_one_latency_do_not_wait_for_each_other() -> None:
    equal, wide = (float(group_term(np.array([100.0]), np.array([spread]), 1)[0]) for spread in (0.0, 500.0))
    assert (equal, wide) == (50.0, pytest.approx(100 / 1.5))


def test_expected_maximum_of_two_coins() -> None:
    means = [Latencies.of(np.array([0.0, 1.0]), np.array([0.5, 0.5])).largest(draws).mean for draws in (1, 2)]
    assert means == pytest.approx([0.5, 0.75])


def test_latency_never_falls_with_the_load() -> None:
    inputs = search_inputs(replace(problem(48, 256), lengths=heavy_tailed(256, 5)), Cuts())
    for curve in inputs.curves.values():
        assert np.all(np.diff(curve.slowest_of_batch) >= -1e-9)
        assert np.all(np.diff(curve.slowest_of_group) >= -1e-9)
