from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.planning.rollout_partition import PartitionSolver, solve_partition
from support.partitions import best_assignment, best_contiguous, random_cost

DEGREES = (1, 2, 4, 8)


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), requests=st.integers(1, 7), gpus=st.integers(1, 8))
def test_equals_exhaustive_search_over_fleets_and_borders(seed: int, requests: int, gpus: int) -> None:
    cost = random_cost(seed, requests)
    found = solve_partition(requests, DEGREES, gpus, cost)
    expected = best_contiguous(cost, requests, DEGREES, gpus)
    assert (found.makespan_s if found else np.inf) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), gpus=st.integers(1, 8))
def test_equals_exhaustive_search_with_eight_requests(seed: int, gpus: int) -> None:
    cost = random_cost(seed, 8)
    found = solve_partition(8, DEGREES, gpus, cost)
    assert (found.makespan_s if found else np.inf) == pytest.approx(best_contiguous(cost, 8, DEGREES, gpus), rel=1e-12)


def test_contiguous_partitions_lose_little_against_all_assignments() -> None:
    gaps = []
    for seed in range(25):
        cost = replace(random_cost(seed, 6), most=8, own_s=4.0, shared_s=17.0, per_sequence_s=0.04, per_token_s=1e-4)
        found = solve_partition(6, DEGREES, 8, cost)
        best = best_assignment(cost, 6, DEGREES, 8)
        if found is not None:
            gaps.append(found.makespan_s / best - 1)
    assert min(gaps) >= -1e-12
    assert np.mean(np.array(gaps) < 1e-9) >= 0.8
    assert np.mean(gaps) < 0.01


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), requests=st.integers(2, 40), gpus=st.integers(1, 24))
def test_shares_cover_every_request_once_within_the_budget(seed: int, requests: int, gpus: int) -> None:
    cost = random_cost(seed, requests)
    found = solve_partition(requests, DEGREES, gpus, cost)
    if found is None:
        return
    assert [i for share in found.shares for i in range(share.first, share.last + 1)] == list(range(requests))
    assert found.num_gpus <= gpus
    assert max(cost.of(share.tp, range(share.first, share.last + 1)) for share in found.shares) == found.makespan_s


def test_least_gpus_falls_as_the_makespan_grows() -> None:
    cost = random_cost(3, 30)
    solver = PartitionSolver(30, DEGREES, cost)
    loosest = cost.of(8, range(30))
    least = [solver.least_gpus(loosest * share, 64) or 65 for share in np.geomspace(0.02, 1, 12)]
    assert least == sorted(least, reverse=True)
    assert least[0] > least[-1]


def test_one_solver_answers_all_budgets_like_fresh_ones() -> None:
    cost = random_cost(11, 25)
    solver = PartitionSolver(25, DEGREES, cost)
    for gpus in (3, 17, 9, 24, 1):
        fresh = solve_partition(25, DEGREES, gpus, cost)
        shared = solver.solve(gpus)
        assert (shared and shared.makespan_s) == (fresh and fresh.makespan_s)


def test_request_too_long_for_small_engines_goes_to_a_large_one() -> None:
    cost = random_cost(0, 5)
    cost = replace(cost, limit=(cost.generated[-1] + cost.prompt) / 3)
    found = solve_partition(5, DEGREES, 12, cost)
    assert found is not None
    assert found.shares[-1].tp >= 4
    assert solve_partition(5, DEGREES, 2, cost) is None
