from math import fsum, isclose, sqrt

from hypothesis import given
from hypothesis import strategies as st

from libra_core.algorithms.advantages import advantages, group_advantages

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


def test_group_std_divides_by_the_population_deviation() -> None:
    result = group_advantages([1.0, 0.0, 0.0, 0.0])
    assert result is not None
    deviation = sqrt(0.1875)
    assert isclose(result[0], 0.75 / deviation, rel_tol=1e-5)
    assert isclose(result[1], -0.25 / deviation, rel_tol=1e-5)


def test_group_mean_only_centres() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 0.0], kind="group_mean") == (0.75, -0.25, -0.25, -0.25)


@given(st.floats(-10, 10), st.integers(2, 16))
def test_equal_rewards_give_exactly_zero(reward: float, size: int) -> None:
    assert group_advantages([reward] * size) == (0.0,) * size


@given(REWARDS)
def test_advantages_of_a_group_sum_to_zero(rewards: list[float]) -> None:
    for kind in ("group_std", "group_mean"):
        result = group_advantages(rewards, kind=kind)  # type: ignore[arg-type]
        assert result is not None
        assert abs(fsum(result)) < 1e-6


@given(REWARDS)
def test_a_better_reward_never_has_a_lower_advantage(rewards: list[float]) -> None:
    result = group_advantages(rewards)
    assert result is not None
    ordered = [advantage for _, advantage in sorted(zip(rewards, result, strict=True))]
    assert ordered == sorted(ordered)


def test_a_group_with_an_unscored_member_is_excluded() -> None:
    assert advantages([[1.0, None], [1.0, 0.0], []], kind="group_mean") == (None, (0.5, -0.5), None)
