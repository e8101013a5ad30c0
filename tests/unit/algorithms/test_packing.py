from hypothesis import given
from hypothesis import strategies as st

from libra_core.algorithms.packing import pack, share

LENGTHS = st.lists(st.integers(1, 300), max_size=60)


@given(LENGTHS, st.integers(16, 256))
def test_every_sequence_is_in_exactly_one_micro_batch(lengths: list[int], budget: int) -> None:
    packed = pack(lengths, budget_tokens=budget)
    assert sorted(index for members in packed for index in members) == list(range(len(lengths)))


@given(LENGTHS, st.integers(16, 256))
def test_only_a_lone_sequence_exceeds_the_budget(lengths: list[int], budget: int) -> None:
    for members in pack(lengths, budget_tokens=budget):
        assert len(members) == 1 or sum(lengths[index] for index in members) <= budget


@given(LENGTHS, st.integers(16, 256))
def test_no_two_micro_batches_would_fit_into_one(lengths: list[int], budget: int) -> None:
    loads = sorted(sum(lengths[index] for index in members) for members in pack(lengths, budget_tokens=budget))
    assert len(loads) < 2 or loads[0] + loads[1] > budget


@given(LENGTHS, st.integers(1, 8))
def test_every_sequence_is_trained_by_exactly_one_rank(lengths: list[int], ranks: int) -> None:
    shares = share(lengths, loads=[0] * ranks)
    assert len(shares) == ranks
    assert sorted(index for mine in shares for index in mine) == list(range(len(lengths)))


@given(st.lists(LENGTHS, max_size=6), st.integers(1, 8))
def test_ranks_differ_by_at_most_one_sequence_of_tokens_over_all_parts(parts: list[list[int]], ranks: int) -> None:
    loads = [0] * ranks
    for lengths in parts:
        shares = share(lengths, loads=loads)
        loads = [load + sum(lengths[index] for index in mine) for load, mine in zip(loads, shares, strict=True)]
    assert max(loads) - min(loads) <= max((length for lengths in parts for length in lengths), default=0)


@given(st.lists(st.integers(1, 300), min_size=8, max_size=60))
def test_no_rank_is_idle_when_there_are_enough_sequences(lengths: list[int]) -> None:
    assert all(share(lengths, loads=[0] * 8))


def test_parts_of_one_sequence_go_round_the_ranks() -> None:
    assert share([10], loads=[0, 0]) == ((0,), ())
    assert share([10], loads=[10, 0]) == ((), (0,))
