"""The tools of a repository: understood in the words of other harnesses too, counted under their own names alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from libra_core.types.trajectory import ToolCall
from libra_core.workloads.calls import UNKNOWN_TOOL, call_arguments, malformed, parse_tool_call
from libra_core.workloads.r2e_gym.tools import command_of, own_terms, script_command, tool_name


def called(tool: str, **arguments: Any) -> ToolCall:
    return own_terms(ToolCall(tool=tool, argument=json.dumps(arguments)))


@pytest.mark.parametrize(
    ("tool", "arguments", "own", "means"),
    [
        ("execute_bash", {"cmd": "ls"}, "bash", {"command": "ls"}),
        ("execute_bash", {"command": "ls"}, "bash", {"command": "ls"}),
        ("finish", {"command": "submit", "result": ""}, "submit", {}),
        ("search", {"search_term": "f(x)", "path": "a"}, "search", {"pattern": r"f\(x\)", "path": "a"}),
        ("search", {"pattern": "f(x)"}, "search", {"pattern": "f(x)"}),
        ("file_editor", {"command": "view", "path": "a", "view_range": "[3, 9]"}, "view", {"path": "a", "start": 3, "end": 9}),
        ("file_editor", {"command": "view", "path": "a", "view_range": [3, -1]}, "view", {"start": 3, "end": None}),
        ("file_editor", {"command": "view", "path": "a", "view_range": "[" * 90_000}, "view", {"start": None, "end": None}),
        ("str_replace_editor", {"command": "create", "path": "a", "file_text": "x"}, "edit", {"old": "", "new": "x"}),
        ("file_editor", {"command": "str_replace", "path": "a", "old_str": "x"}, "edit", {"path": "a", "old": "x", "new": ""}),
        (
            "file_editor",
            {"command": "insert", "insert_line": "2", "new_str": "y"},
            "insert",
            {"after": "2", "new": "y"},
        ),
        ("edit", {"path": "a", "old": "x", "new": "y"}, "edit", {"path": "a", "old": "x", "new": "y"}),
    ],
)
def test_calls_of_other_harnesses_are_understood(tool: str, arguments: dict[str, Any], own: str, means: dict[str, Any]) -> None:
    call = called(tool, **arguments)
    assert call.tool == own
    assert call_arguments(call).items() >= means.items()


@pytest.mark.parametrize("command", ["undo_edit", 7, None, ["x" * 1000]])
def test_an_editor_command_without_a_counterpart_is_answered(command: object) -> None:
    said = command_of(called("file_editor", command=command, path="a"))
    assert isinstance(said, str)
    assert said.startswith("There is no tool")
    assert "edit command" in said
    assert len(said) < 100


def test_only_our_own_tools_are_counted_by_name() -> None:
    assert tool_name(called("execute_bash", cmd="ls")) == "bash"
    assert tool_name(called("x" * 64)) == UNKNOWN_TOOL
    assert tool_name(malformed("no JSON", "made up")) == UNKNOWN_TOOL
    broken = parse_tool_call('<tool_call>{"name": "bash", "arguments": [1]}</tool_call>')
    assert broken is not None
    assert tool_name(own_terms(broken)) == "bash"


def run(folder: Path, **request: Any) -> tuple[int, str]:
    source = script_command("file_tools.py", {}).argv[-1]
    command = [sys.executable, "-I", "-S", "-c", source]
    done = subprocess.run(command, input=json.dumps(request), cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        ("a\nb\n", 0, "new\na\nb\n"),
        ("a\nb\n", 1, "a\nnew\nb\n"),
        ("a\nb", 2, "a\nb\nnew\n"),
        ("", 0, "new\n"),
        ("a\x0c\nb\n", 1, "a\x0c\nnew\nb\n"),
    ],
)
def test_a_line_is_inserted_after_another(tmp_path: Path, before: str, after: int, result: str) -> None:
    (tmp_path / "f").write_text(before)
    assert run(tmp_path, tool="insert", path="f", after=after, new="new") == (0, "f is changed\n")
    assert (tmp_path / "f").read_text() == result


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"tool": "insert", "path": "f", "after": 9, "new": "x"}, "f has 1 lines; there is no line 9"),
        ({"tool": "insert", "path": "f", "after": "x", "new": "x"}, "an argument is wrong"),
        ({"tool": "insert", "path": "f", "after": None, "new": "x"}, "an argument is wrong"),
        ({"tool": "view", "path": "f", "start": float("inf")}, "an argument is wrong"),
        ({"tool": "view", "path": "\0"}, "an argument is wrong"),
        ({"tool": "edit", "path": "f", "old": "a"}, "the argument 'new' is missing"),
    ],
)
def test_wrong_arguments_are_an_error_in_words_and_change_nothing(tmp_path: Path, request_: dict[str, Any], says: str) -> None:
    (tmp_path / "f").write_text("a\n")
    code, said = run(tmp_path, **request_)
    assert code == 1
    assert says in said
    assert (tmp_path / "f").read_text() == "a\n"
