"""Figures of a run and rows of a comparison."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.config import LibraConfig
from libra_core.config.comparison import ComparisonConfig
from libra_core.config.loading import validate_config
from libra_core.tracking.comparison import ComparedRun, figures_of, gpus_of, plan_sentence, results_of

COMPARISON = ComparisonConfig(
    name="c", baselines=("a.yaml", "b.yaml"), reference="a", steps=4, skipped_steps=1, reward_target=0.5, reward_window=2
)


def rows(rewards: list[float], t_iter_s: float = 10.0) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "iteration/t_iter_s": t_iter_s,
            "iteration/t_train_s": 4.0,
            "time/trainer_busy_s": 5.0,
            "rollout/generated_tokens": 100,
            "rollout/staleness_mean_versions": 0.5,
            "rollout/staleness_max_versions": step % 2,
            "reward/mean": reward,
            "progress/wall_s": (step + 1) * t_iter_s,
        }
        for step, reward in enumerate(rewards)
    ]


def outcome(baseline: str, seed: int, rate: float, reached: float | None = None) -> ComparedRun:
    figures = {"tokens_per_s": rate, "t_iter_s": 1.0, "reward_last": 0.1, "time_to_reward_s": reached, "reward_per_gpu_hour": 1.0}
    return ComparedRun(baseline=baseline, seed=seed, status="finished", figures=figures)


def test_figures_of_a_run_leave_the_first_steps_out_and_are_shares_of_the_rest() -> None:
    first, *others = rows([0.0, 0.2, 0.4, 0.6, 0.6])
    first |= {"iteration/t_iter_s": 1000.0, "rollout/generated_tokens": 1}
    figures = figures_of([first, *others], LibraConfig(), COMPARISON)
    assert figures["tokens_per_s"] == pytest.approx(10.0)
    assert figures["t_iter_s"] == pytest.approx(10.0)
    assert figures["trainer_busy"] == pytest.approx(0.5)
    assert figures["steps_per_hour"] == pytest.approx(360.0)
    assert figures["staleness_max"] == 1


def test_the_time_to_a_reward_is_that_of_the_first_window_that_reaches_it() -> None:
    lucky_once = [0.0, 0.9, 0.0, 0.4, 0.6, 0.7]
    assert figures_of(rows(lucky_once), LibraConfig(), COMPARISON)["time_to_reward_s"] == 50.0
    assert figures_of(rows([0.0, 0.1, 0.2, 0.3]), LibraConfig(), COMPARISON)["time_to_reward_s"] is None


def test_reward_per_slot_hour_is_what_was_gained_over_the_hours_of_all_slots() -> None:
    figures = figures_of(rows([0.0] * 3 + [0.5] * 3, t_iter_s=600.0), LibraConfig(), COMPARISON)
    assert figures["reward_per_gpu_hour"] == pytest.approx(0.5 / 2)  # an hour of two slots


def test_a_simulated_run_has_no_rewards() -> None:
    config = validate_config({"backend": {"kind": "simulated"}})
    figures = figures_of(rows([0.9] * 4), config, COMPARISON)
    assert (figures["reward_last"], figures["time_to_reward_s"], figures["reward_per_gpu_hour"]) == (None, None, None)


def test_a_run_that_took_too_few_steps_has_no_figures() -> None:
    with pytest.raises(ValueError, match="took 1 steps and the first 1 do not count"):
        figures_of(rows([0.1]), LibraConfig(), COMPARISON)


def test_slots_of_a_colocated_pool_count_once() -> None:
    fleet = {"engines": [{"tp": 1, "count": 2}]}
    both = validate_config({"rollout": fleet, "training": {"layout": {"dp": 2}}})
    turns = validate_config({"rollout": fleet | {"mode": "colocated"}, "training": {"layout": {"dp": 2}}})
    assert (gpus_of(both), gpus_of(turns)) == (4, 2)
    assert plan_sentence(turns) == "2 = tp1 pp1 dp2 · 2 x tp1 in turns"


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=1, max_size=4))
def test_ratios_are_taken_seed_by_seed_and_are_one_for_the_reference(rates: list[tuple[float, float]]) -> None:
    outcomes = [
        outcome(name, seed, rate) for seed, pair in enumerate(rates, start=1) for name, rate in zip("ab", pair, strict=True)
    ]
    ours, other = results_of(COMPARISON, outcomes)["rows"]
    ratios = [b / a for a, b in rates]
    assert ours["over_reference"] == {"mean": 1.0, "least": 1.0, "most": 1.0}
    assert other["over_reference"] == pytest.approx(
        {"mean": sum(ratios) / len(ratios), "least": min(ratios), "most": max(ratios)}
    )


def test_a_run_without_its_pair_is_in_no_ratio() -> None:
    failed = ComparedRun(baseline="a", seed=2, status="failed", reason="no memory", exit_code=2)
    ours, other = results_of(COMPARISON, [outcome("a", 1, 10.0), outcome("b", 1, 20.0), failed, outcome("b", 2, 90.0)])["rows"]
    assert other["over_reference"] == {"mean": 2.0, "least": 2.0, "most": 2.0}
    assert (ours["finished"], ours["reasons"]) == (1, ["no memory"])


def test_how_many_runs_reached_the_reward_is_said() -> None:
    _, row = results_of(COMPARISON, [outcome("b", 1, 1.0, reached=30.0), outcome("b", 2, 1.0)])["rows"]
    assert (row["reached"], row["finished"], row["time_to_reward_s"]["mean"]) == (1, 2, 30.0)
