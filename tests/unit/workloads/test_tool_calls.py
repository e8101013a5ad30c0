"""Tool calls in what a policy wrote: every style, and whatever else it may write."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.workloads.calls import call_arguments, parse_tool_call


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
        'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>\n',
        '<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>',
        '<tool_call>{"name": "bash", "parameters": {"command": "ls"}}</tool_call>',
        "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>",
        "<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>",
        '{"name": "bash", "arguments": {"command": "ls"}}',
    ],
)
def test_every_style_is_the_same_call(text: str) -> None:
    call = parse_tool_call(text)
    assert call is not None
    assert not call.malformed
    assert (call.tool, call_arguments(call)) == ("bash", {"command": "ls"})


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "</tool_call>",
        "</tool_call><tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>{"name": "bash"',
        '<tool_call>{"name": "bash", "arguments": {}}</tool_call><tool_call>{"name": "b", "arguments": {}}</tool_call>',
        "<tool_call>{bash: ls}</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": "{"}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"command": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"\\\\ud800\\"}"}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        "<tool_call>" + "x" * 200_000 + "</tool_call>",
        "<function=bash>",
        "<function=a></function><function=b></function>",
        "<function=a>" * 8_000,
        "<tool_call>" + "<function=a>" * 8_000 + "</tool_call>",
        "<function=>x</function>",
        "<function=a b>x</function>",
    ],
)
def test_broken_calls_are_malformed_with_a_reason(text: str) -> None:
    call = parse_tool_call(text)
    assert call is not None
    assert call.malformed
    assert 0 < len(call.argument) < 400


def test_parameters_that_are_not_closed_are_left_out() -> None:
    call = parse_tool_call("<function=bash><parameter=command>ls</parameter>" + "<parameter=b>" * 7_000 + "</function>")
    assert call is not None
    assert (call.malformed, call_arguments(call)) == (False, {"command": "ls"})


@pytest.mark.parametrize("text", ["", "I think.", "{1, 2}", "x" * 100_000, "\x00\ufffd", "a < b > c", '{"answer": 3}'])
def test_a_turn_without_a_call_is_none(text: str) -> None:
    assert parse_tool_call(text) is None


PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<function=a>",
    "</function>",
    "<parameter=b>",
    "</parameter>",
    '{"name": "a"',
    "}",
    ", ",
]
NAMES = st.characters(exclude_characters="<", exclude_categories=["Cs"])  # a half of a surrogate pair is refused
JSON_TEXTS = st.text(max_size=12)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | JSON_TEXTS,
    lambda inner: st.dictionaries(JSON_TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=15).map("".join))
def test_parsing_never_raises_and_a_good_call_has_arguments(text: str) -> None:
    call = parse_tool_call(text)
    assert call is None or call.malformed or isinstance(call_arguments(call), dict)


@given(st.text(alphabet=NAMES, min_size=1, max_size=20), st.dictionaries(JSON_TEXTS, JSON_VALUES, max_size=4))
def test_json_arguments_arrive_as_written(name: str, arguments: dict[str, object]) -> None:
    body = json.dumps({"name": name, "arguments": arguments})
    if "<tool_call>" in body or "</tool_call>" in body or "<function=" in body:
        return
    call = parse_tool_call(f"<tool_call>{body}</tool_call>")
    assert call is not None
    assert (call.tool, call_arguments(call)) == (name, arguments)
