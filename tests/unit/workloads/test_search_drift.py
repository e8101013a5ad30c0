"""Built-in questions that change over the run: by the prompt's index alone, so that a resumed run asks the same."""

import asyncio
import time
from dataclasses import replace
from itertools import islice

import pytest

from libra_core.config.loading import validate_config
from libra_core.config.workload import SearchR1Config
from libra_core.errors import ConfigError
from libra_core.types.trajectory import ToolCall, ToolStatus
from libra_core.workloads.search_r1.drift import Mix, QuestionDrift
from libra_core.workloads.search_r1.environment import SearchEnvironment
from libra_core.workloads.search_r1.facts import load_world, split_world
from libra_core.workloads.search_r1.source import SearchPromptSource
from support.search_worlds import CODEC

POINTS = [{"step": 2, "two_hop_share": 0.0}, {"step": 6, "two_hop_share": 1.0, "search_s": 0.4}]


def drift(**settings: object) -> QuestionDrift:
    return QuestionDrift(SearchR1Config.model_validate(settings), groups_per_step=10)


def test_between_points_everything_changes_linearly_and_outside_them_nothing() -> None:
    found = [drift(drift=POINTS).at(prompt) for prompt in (0, 20, 40, 60, 900)]
    assert [mix.two_hop_share for mix in found] == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])
    assert [mix.search_s for mix in found] == pytest.approx([0.0, 0.0, 0.2, 0.4, 0.4])


def test_without_points_a_run_asks_the_same_throughout() -> None:
    assert drift(two_hop_share=0.3, search_s=0.1).at(5) == drift(two_hop_share=0.3, search_s=0.1).at(9000)
    assert drift(two_hop_share=0.3).at(0) == Mix(two_hop_share=0.3, search_s=0.0)


def test_the_stream_follows_the_drift_and_resumes_anywhere() -> None:
    source = SearchPromptSource(CODEC, split_world(load_world(), 0.2), two_hop_share=0.5, seed=0, drift=drift(drift=POINTS))
    prompts = list(islice(source.training(0), 100))
    assert {prompt.kind for prompt in prompts[:20]} == {"one_hop"}
    assert {prompt.kind for prompt in prompts[60:]} == {"two_hop"}
    assert list(islice(source.training(55), 10)) == prompts[55:65]
    assert (prompts[0].instance, prompts[99].instance) == ("", "0.400")


def test_a_slow_search_takes_as_long_as_its_prompt_says_and_answers_the_same() -> None:
    world = load_world()
    environment = SearchEnvironment(CODEC, world, top_k=1, max_passage_tokens=32)
    source = SearchPromptSource(CODEC, split_world(world, 0.2), two_hop_share=0.0, seed=0)
    quick = next(iter(source.training(0)))
    call = ToolCall(tool="search", argument=world.countries[0].name)

    async def answers() -> None:
        started_s = time.perf_counter()
        slow = await (await environment.reset(replace(quick, instance="0.050"))).step(call)
        assert time.perf_counter() - started_s >= 0.05
        assert slow.status is ToolStatus.OK
        assert slow.duration_s >= 0.05
        assert slow.token_ids == (await (await environment.reset(quick)).step(call)).token_ids

    asyncio.run(answers())


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({"drift": list(reversed(POINTS))}, "must name ascending steps"),
        ({"train_files": ["a.json"], "corpus": "b.json", "search_s": 1.0}, "are for the built-in questions"),
    ],
)
def test_a_drift_that_cannot_be_is_refused(workload: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        validate_config({"workload": workload})
