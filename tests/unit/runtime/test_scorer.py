"""What a trajectory is worth: a finite number of the scorer's, nothing when it failed, and what is configured when it was cut."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from libra_core.config.rollout import RolloutConfig
from libra_core.runtime.rollout.scorer import is_masked, score_one, summarise, with_advantages
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.trajectory import FailureKind, FinishReason, Prompt, Trajectory
from support.search_worlds import prompt, trajectory

PROMPT = prompt()
CUT = replace(trajectory(("Answer: 4", 1)), finish_reason=FinishReason.LENGTH)


class Judge:
    """Only what the scorer asks of an environment."""

    def __init__(self, verdict: Any) -> None:
        self.verdict = verdict
        self.asked = 0

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> Any:
        self.asked += 1
        return self.verdict


def scored(verdict: Any, sample: Trajectory | None = None, **limits: Any) -> Trajectory:
    config = RolloutConfig(**limits)
    return asyncio.run(score_one(Judge(verdict), PROMPT, sample or trajectory(("x", 1)), config))  # type: ignore[arg-type]


@pytest.mark.parametrize("verdict", [math.nan, math.inf, None, "good", [1.0]])
def test_a_verdict_that_is_no_number_fails_the_trajectory_and_names_it(verdict: Any) -> None:
    found = scored(verdict)
    assert found.reward is None
    assert found.failure is not None
    assert found.failure.kind is FailureKind.SCORER
    assert f"the scorer of t returned {verdict!r}" in found.failure.message


@pytest.mark.parametrize(
    ("setting", "verdict", "reward"),
    [("penalise", 1.0, 0.0), ("penalise", -0.5, -0.5), ("mask", 1.0, None), ("grade", 1.0, 1.0)],
)
def test_a_cut_trajectory_is_worth_what_is_configured(setting: str, verdict: float, reward: float | None) -> None:
    found = scored(verdict, CUT, on_length_limit=setting)
    assert (found.reward, found.failure) == (reward, None)
    assert is_masked(found) is (setting == "mask")


def test_by_default_a_cut_trajectory_is_not_graded_as_a_finished_one() -> None:
    assert scored(1.0, CUT).reward == 0.0
    assert scored(1.0).reward == 1.0


def samples(*rewards: float | None) -> list[Trajectory]:
    return [
        replace(CUT if reward is None else trajectory(("x", 1)), sample_index=i, reward=reward)
        for i, reward in enumerate(rewards)
    ]


def test_masked_samples_are_in_no_baseline_and_have_no_advantage() -> None:
    found = with_advantages(samples(1.0, None, 0.0, None), "group_mean")
    assert [t.advantage for t in found] == [0.5, None, -0.5, None]
    assert [t.advantage for t in with_advantages(samples(None, None), "group_std")] == [None, None]
    assert [t.advantage for t in with_advantages(samples(1.0, None), "group_std")] == [0.0, None]


def test_the_report_counts_masked_samples_apart_from_lost_ones() -> None:
    group = TrajectoryGroup(index=0, prompt=PROMPT, started_version=PolicyVersion(0), trajectories=tuple(samples(1.0, None, 0.0)))
    report = summarise(BatchId("b"), [group], duration_s=0.0)
    assert (report.mean, report.masked, report.failed) == (0.5, 1, 0)
