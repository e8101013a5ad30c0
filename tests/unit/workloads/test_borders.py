"""What user code hands over is checked once, where it enters."""

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.borders import (
    ReturnBounds,
    call_of,
    cut_middle,
    episode_of,
    half_pair,
    prompt_of,
    return_of,
    reward_of,
    submission_of,
)
from libra_core.errors import BorderError
from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus

BOUNDS = ReturnBounds(max_tokens=100, vocabulary=1000, mark=(7, 7))
RETURN = ToolReturn(tool="search", status=ToolStatus.OK, token_ids=(1, 2), duration_s=0.5)


class _Raising:
    def item(self) -> float:
        raise KeyError("score")


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("value", [1, 0.5, True, -2.0, np.float32(0.5), np.int64(3), np.array(1.0), Decimal("0.5")])
def test_numbers_are_rewards(value: Any) -> None:
    reward = reward_of(value, "g1.0.0")
    assert type(reward) is float
    assert reward == float(value)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        None,
        "0.5",
        "",
        b"1",
        [1.0],
        {},
        np.nan,
        np.array([1.0, 2.0]),
        10**400,
        1e308,
        1j,
        Decimal("NaN"),
        Decimal("sNaN"),
        np.timedelta64(1, "s"),
        _Raising(),
    ],
)
def test_what_is_no_finite_number_is_no_reward(value: Any) -> None:
    with pytest.raises(BorderError, match=r"the scorer of g1\.0\.0 returned .*; a reward is a finite number, at most 1e\+09"):
        reward_of(value, "g1.0.0")


@given(ANY)
def test_a_reward_is_a_finite_float_or_a_sentence(value: Any) -> None:
    try:
        reward = reward_of(value, "t")
    except BorderError:
        return
    assert type(reward) is float
    assert math.isfinite(reward)


@pytest.mark.parametrize(
    "token_ids", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc", None, 5, {1: 2}, (1, "2"), (1, 2.0), (None,)]
)
def test_tokens_of_a_tool_are_a_sequence_of_whole_numbers(token_ids: Any) -> None:
    with pytest.raises(BorderError, match="the tool of t has the token"):
        return_of(replace(RETURN, token_ids=token_ids), "t", BOUNDS)


@pytest.mark.parametrize("wrong", [-1, 1000, 2**40])
def test_tokens_outside_the_vocabulary_are_refused(wrong: int) -> None:
    with pytest.raises(BorderError, match=rf"the tool of t has the token id {wrong}; the model's vocabulary has 0 to 999"):
        return_of(replace(RETURN, token_ids=(1, wrong)), "t", BOUNDS)
    prompt = Prompt(prompt_id=PromptId("p"), token_ids=(1, wrong), text="", answers=())
    with pytest.raises(BorderError, match=f"prompt p has the token id {wrong}"):
        prompt_of(prompt, 1000)


def test_arrays_of_token_ids_become_plain_numbers() -> None:
    found = return_of(replace(RETURN, token_ids=np.array([3, 4])), "t", BOUNDS)
    assert found.token_ids == (3, 4)
    assert all(type(token_id) is int for token_id in found.token_ids)


def test_a_long_answer_keeps_its_ends_around_a_mark() -> None:
    found = return_of(replace(RETURN, token_ids=tuple(range(900)) * 6_000), "t", BOUNDS).token_ids
    assert len(found) == 100
    assert found[:3] == (0, 1, 2)
    assert found[49:51] == (7, 7)
    assert found[-1] == 899


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), max_size=4).map(tuple), st.integers(0, 30))
def test_a_cut_answer_is_within_its_bound_and_a_short_one_untouched(
    token_ids: list[int], mark: tuple[int, ...], most: int
) -> None:
    kept = cut_middle(token_ids, mark, most)
    assert len(kept) == min(most, len(token_ids))
    if len(token_ids) <= most:
        assert kept == tuple(token_ids)
    elif most - len(mark) >= 2:
        assert any(kept[place : place + len(mark)] == mark for place in range(len(kept)))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"status": "fine"}, "the status 'fine'; it is one of ok, error, timeout, malformed"),
        ({"tool": None}, "calls itself None"),
        ({"duration_s": -1.0}, "duration_s = -1.0; seconds are a number of 0 or more"),
        ({"duration_s": math.nan}, "duration_s = nan"),
        ({"waited_s": None}, "waited_s = None"),
    ],
)
def test_other_parts_of_a_tool_return_are_checked_too(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(BorderError, match=says):
        return_of(replace(RETURN, **changed), "t", BOUNDS)


def test_a_tool_return_is_one() -> None:
    for value in (None, "text", {"token_ids": [1]}, (1, 2)):
        with pytest.raises(BorderError, match="a tool returns a ToolReturn"):
            return_of(value, "t", BOUNDS)
    assert len(return_of(replace(RETURN, tool="x" * 500, status="ok"), "t", BOUNDS).tool) == 64


def test_episodes_calls_and_submissions_are_what_the_port_says() -> None:
    with pytest.raises(BorderError, match="reset of t returned None; an episode has the method step"):
        episode_of(None, "t")
    with pytest.raises(BorderError, match="parse_call of t returned 'search'"):
        call_of("search", "t")
    with pytest.raises(BorderError, match="it returns None or a ToolCall of two texts"):
        call_of(ToolCall(tool="x", argument=None), "t")  # type: ignore[arg-type]
    with pytest.raises(BorderError, match="the submission of t is None"):
        submission_of(None, "t")
    assert call_of(None, "t") is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"answers": "Paris"}, "has the answers 'Paris'; they are a list of texts"),
        ({"answers": None}, "has the answers None"),
        ({"answers": (42,)}, r"has the answers \(42,\)"),
        ({"text": None}, "has text = None; it is a text"),
        ({"kind": 3}, "has kind = 3"),
        ({"prompt_id": None}, "has prompt_id = None"),
    ],
)
def test_a_prompt_is_made_of_texts(changed: dict[str, Any], says: str) -> None:
    prompt = Prompt(prompt_id=PromptId("p"), token_ids=(1,), text="q", answers=("Paris",))
    assert prompt_of(replace(prompt, answers=["Paris"]), 10) == prompt
    with pytest.raises(BorderError, match=says):
        prompt_of(replace(prompt, **changed), 10)


def test_names_are_of_characters_that_can_be_written() -> None:
    call = call_of(ToolCall(tool="py\ud800", argument=""), "t")
    assert call is not None
    assert call.tool == "py?"
    assert return_of(replace(RETURN, tool="\udfff"), "t", BOUNDS).tool == "?"


def test_half_a_character_is_found_however_deep_it_lies() -> None:
    value: Any = "\ud800"
    for _ in range(5000):
        value = [{"a": value}]
    assert half_pair(value) == "\ud800"
