"""What a policy only thinks of is neither a call nor an answer."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.config.workload import DapoMathConfig
from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.calls import call_arguments, parse_tool_call
from libra_core.workloads.dapo_math.environment import DapoMathEnvironment
from libra_core.workloads.search_r1.tag_environment import last_answer, parse_search
from libra_core.workloads.spoken import said_aloud
from support.search_worlds import CODEC, trajectory

CALL = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("turn", "aloud"),
    [
        ("no thought", "no thought"),
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("a<think>b", "a"),
        ("<think>a</think>b<think>c", "b"),
        ("", ""),
    ],
)
def test_what_follows_the_last_thought_is_said(turn: str, aloud: str) -> None:
    assert said_aloud(turn) == aloud


@pytest.mark.parametrize("turn", [f"<think>{CALL}</think>done", f"<think>{CALL}", f"{CALL}</think>", f"<think>{CALL}</think>"])
def test_a_call_inside_a_thought_is_none(turn: str) -> None:
    assert parse_tool_call(turn) is None


@pytest.mark.parametrize(
    "thought", ["<think>hm</think>", f"<think>{CALL}{CALL}</think>", "<think><tool_call></think>", "</think>"]
)
def test_a_call_after_a_thought_is_one(thought: str) -> None:
    call = parse_tool_call(thought + CALL)
    assert call is not None
    assert (call.tool, call.malformed) == ("bash", False)


@pytest.mark.parametrize("written", ["<think>", "</think>", "a <think>b</think> c", "</think><think>"])
@pytest.mark.parametrize("thought", ["", "<think>hm</think>", f"<think>{CALL}</think>"])
def test_an_argument_may_speak_of_thoughts(thought: str, written: str) -> None:
    body = json.dumps({"name": "write", "arguments": {"text": written}})
    function = f"<function=write><parameter=text>{written}</parameter></function>"
    for turn in (f"{thought}<tool_call>{body}</tool_call>", thought + function, body):
        call = parse_tool_call(turn)
        assert call is not None
        assert call_arguments(call) == {"text": written}


@given(st.lists(st.sampled_from(["<think>", "</think>", CALL, "x", " "]), max_size=8).map("".join))
def test_a_call_is_found_where_it_is_said_and_nowhere_else(turn: str) -> None:
    call = parse_tool_call(turn)
    assert (call is None) == (CALL not in turn.rpartition("</think>")[2].partition("<think>")[0])


def test_searches_and_answers_inside_a_thought_are_none() -> None:
    assert parse_search("<think><search>a</search></think>I stop") is None
    thinking = parse_search("<think>maybe <search>a</search>")
    assert thinking is not None
    assert thinking.malformed, "the engine stopped at the tag in the middle of a thought; the policy goes on"
    spoken = parse_search("<think><search>a</search></think><search> b </search>")
    assert spoken is not None
    assert (spoken.argument, spoken.malformed) == ("b", False)
    assert last_answer("<think><answer>x</answer></think>") is None
    assert last_answer("<think><answer>x</answer></think><answer>y</answer>") == "y"


@pytest.mark.parametrize(
    ("written", "reward"),
    [
        ("<think>\\boxed{42}</think> \\boxed{41}", 0.0),
        ("<think>\\boxed{41}</think> \\boxed{42}", 1.0),
        ("<think>\\boxed{42}</think> I do not know", 0.0),
    ],
)
def test_mathematics_is_graded_by_what_is_said(written: str, reward: float) -> None:
    environment = DapoMathEnvironment(CODEC, DapoMathConfig(), max_new_tokens=100, sandboxes=None)
    prompt = Prompt(prompt_id=PromptId("p"), token_ids=(1,), text="", answers=("42",))
    assert asyncio.run(environment.score(prompt, trajectory((written, 1), asked=prompt))) == reward
