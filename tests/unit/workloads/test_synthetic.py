"""The synthetic workload: lengths, waits and rewards follow the configured laws and depend on names alone."""

import asyncio
import json
import math
import random
from itertools import chain, islice
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest

from libra_core.config.loading import validate_config
from libra_core.config.workload import SyntheticConfig
from libra_core.errors import ModelFolderError
from libra_core.types.ids import GroupId, PolicyVersion, PromptId, TrajectoryId
from libra_core.types.trajectory import FinishReason, Prompt, ToolCall, ToolReturn, Trajectory, VersionSegment
from libra_core.workloads.build import build_workload
from libra_core.workloads.synthetic.environment import SyntheticEnvironment
from libra_core.workloads.synthetic.source import SyntheticPromptSource
from libra_core.workloads.synthetic.vocabulary import draw_vocabulary

VOCABULARY = 1024
SETTINGS = SyntheticConfig()
TRAJECTORIES = 2000


def environment(settings: SyntheticConfig = SETTINGS, seed: int = 0, slept: list[float] | None = None) -> SyntheticEnvironment:
    vocabulary = draw_vocabulary(VOCABULARY, turn_tokens=settings.turn_tokens, seed=seed)

    async def sleep(duration_s: float) -> None:
        if slept is not None:
            slept.append(duration_s)

    return SyntheticEnvironment(settings, vocabulary, seed=seed, sleep=sleep)


def prompt(number: int) -> Prompt:
    return next(SyntheticPromptSource(vocabulary_size=VOCABULARY, prompt_tokens=8, seed=0).training(number))


def call_tool(target: SyntheticEnvironment, call: ToolCall) -> ToolReturn:
    async def once() -> ToolReturn:
        return await (await target.reset(prompt(0))).step(call)

    return asyncio.run(once())


def sampled_turns(target: SyntheticEnvironment, generator: random.Random) -> list[list[int]]:
    """The turns of one trajectory under a policy that likes all tokens alike."""
    stops = set(target.stops().token_ids)
    turns: list[list[int]] = []
    while True:
        turn: list[int] = []
        while not turn or turn[-1] not in stops:
            turn.append(generator.randrange(VOCABULARY))
        turns.append(turn)
        if target.parse_call(turn) is None:
            return turns


def population(seed: int = 0) -> list[list[list[int]]]:
    generator = random.Random(seed)
    return [sampled_turns(environment(), generator) for _ in range(TRAJECTORIES)]


def trajectory(token_ids: list[int], loss_mask: list[int]) -> Trajectory:
    return Trajectory(
        trajectory_id=TrajectoryId("t"),
        group_id=GroupId("g"),
        prompt_id=PromptId("p"),
        sample_index=0,
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        logprobs=(0.0,) * len(token_ids),
        prompt_tokens=0,
        versions=(VersionSegment(version=PolicyVersion(0), start=0, end=len(token_ids)),),
        turns=1,
        tool_returns=(),
        finish_reason=FinishReason.STOP,
        engine_history=(),
        started_s=0.0,
        finished_s=1.0,
    )


def share_of_longest(amounts: list[float], part: float) -> float:
    ordered = sorted(amounts, reverse=True)
    return sum(ordered[: int(len(ordered) * part)]) / sum(ordered)


def test_turns_and_their_tokens_have_the_configured_means() -> None:
    trajectories = population()
    assert fmean(map(len, trajectories)) == pytest.approx(SETTINGS.turns, rel=0.1)
    assert fmean(len(turn) for turns in trajectories for turn in turns) == pytest.approx(SETTINGS.turn_tokens, rel=0.1)


def test_the_longest_tenth_of_trajectories_holds_more_than_30_percent_of_the_turns() -> None:
    assert share_of_longest([float(len(turns)) for turns in population()], 0.1) > 0.3


def test_the_slowest_tenth_of_trajectories_holds_more_than_40_percent_of_the_waiting() -> None:
    target = environment()
    waits = [
        sum(target.wait_s(prompt(number // 4), call) for turn in turns if (call := target.parse_call(turn)) is not None)
        for number, turns in enumerate(population())
    ]
    assert share_of_longest(waits, 0.1) > 0.4


def test_waits_are_log_normal_with_the_configured_median_and_spread() -> None:
    target = environment()
    waits = [target.wait_s(prompt(number), ToolCall(tool="wait", argument=str(number))) for number in range(TRAJECTORIES)]
    assert median(waits) == pytest.approx(SETTINGS.tool_wait_s, rel=0.1)
    assert pstdev([math.log(wait) for wait in waits]) == pytest.approx(SETTINGS.tool_wait_sigma, rel=0.1)


def test_calls_of_one_prompt_share_their_part_of_the_spread() -> None:
    only_prompt = environment(SyntheticConfig(tool_wait_prompt_share=1.0))
    calls = [ToolCall(tool="wait", argument=str(number)) for number in range(5)]
    assert len({only_prompt.wait_s(prompt(3), call) for call in calls}) == 1
    assert only_prompt.wait_s(prompt(3), calls[0]) != only_prompt.wait_s(prompt(4), calls[0])


def test_a_tool_really_waits_and_returns_the_configured_number_of_tokens() -> None:
    slept: list[float] = []
    target = environment(slept=slept)
    call = ToolCall(tool="wait", argument="a")
    answer = call_tool(target, call)
    assert slept == [target.wait_s(prompt(0), call)]
    assert len(answer.token_ids) == SETTINGS.tool_tokens
    assert all(0 <= token < VOCABULARY for token in answer.token_ids)


def test_the_same_tokens_give_the_same_call_the_same_wait_and_the_same_answer() -> None:
    turn, other = [5, 6, 7], environment()
    call = ToolCall(tool="wait", argument="a")
    assert environment().parse_call(turn) == other.parse_call(turn)
    assert call_tool(environment(), call).token_ids == call_tool(other, call).token_ids
    assert environment().stops().token_ids == other.stops().token_ids
    assert environment(seed=1).stops().token_ids != other.stops().token_ids


def test_rewards_are_about_a_half_differ_inside_groups_and_ignore_what_tools_returned() -> None:
    target = environment()
    sampled = [list(chain.from_iterable(turns)) for turns in population()]
    rewards = [target.judge(trajectory(tokens, [1] * len(tokens))) for tokens in sampled]
    assert fmean(rewards) == pytest.approx(0.5, abs=0.03)
    groups = [rewards[start : start + 4] for start in range(0, TRAJECTORIES, 4)]
    assert fmean(len(set(group)) > 1 for group in groups) > 0.95
    assert target.judge(trajectory([1, 2, 3], [0, 0, 0])) == 0.0
    assert target.judge(trajectory([1, 2, 3], [0, 1, 0])) == target.judge(trajectory([2], [1]))


def test_stream_resumes_identically_at_any_index_and_differs_by_seed() -> None:
    source = SyntheticPromptSource(vocabulary_size=VOCABULARY, prompt_tokens=8, seed=0)
    other = SyntheticPromptSource(vocabulary_size=VOCABULARY, prompt_tokens=8, seed=1)
    whole = list(islice(source.training(0), 30))
    assert list(islice(source.training(17), 13)) == whole[17:]
    assert list(islice(other.training(0), 30)) != whole
    assert source.heldout(5) == other.heldout(5)


def test_any_model_folder_will_do_that_names_its_vocabulary_size(tmp_path: Path) -> None:
    config = validate_config({"workload": {"kind": "synthetic", "prompt_tokens": 5}})
    with pytest.raises(ModelFolderError, match="names no vocab_size"):
        build_workload(config, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 77}))
    workload = build_workload(config, tmp_path)
    first = next(iter(workload.prompts.training(0)))
    assert len(first.token_ids) == 5
    assert max(*first.token_ids, *workload.environment.stops().token_ids) < 77
