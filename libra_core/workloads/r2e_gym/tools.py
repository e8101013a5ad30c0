"""The tools of a repository as commands in its sandbox."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from libra_core.types.trajectory import ToolCall
from libra_core.workloads.calls import UNKNOWN_TOOL, call_arguments
from libra_core.workloads.r2e_gym import inside
from libra_core.workloads.sandbox.types import SandboxCommand

SUBMIT: Final = "submit"
USAGE: Final = (
    "Tools, one call per turn:\n"
    '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>\n'
    '<tool_call>{"name": "view", "arguments": {"path": "a.py", "start": 1, "end": 40}}</tool_call>\n'
    '<tool_call>{"name": "search", "arguments": {"pattern": "def ", "path": "."}}</tool_call>\n'
    '<tool_call>{"name": "edit", "arguments": {"path": "a.py", "old": "text that occurs once", "new": "text"}}</tool_call>\n'
    '<tool_call>{"name": "python", "arguments": {"code": "print(1)"}}</tool_call>\n'
    '<tool_call>{"name": "submit", "arguments": {}}</tool_call>'
)
_BASH: Final = ("bash", "execute_bash", "run")
_EDITORS: Final = ("file_editor", "str_replace_editor")
_ENDS: Final = (SUBMIT, "finish")


def own_terms(call: ToolCall) -> ToolCall:
    """A call to a tool of R2E-Gym or SWE-agent as the one that does the same here; any other stays as it is."""
    if call.malformed:
        return call
    arguments = call_arguments(call)
    tool = call.tool
    if tool in _BASH:
        tool, arguments = "bash", {"command": arguments.get("cmd"), **arguments}
    elif tool in _ENDS:
        tool = SUBMIT
    elif tool == "search" and "search_term" in arguments:
        arguments = {"path": arguments.get("path", "."), "pattern": re.escape(str(arguments["search_term"]))}
    elif tool in _EDITORS:
        tool, arguments = _edited(arguments)
    return replace(call, tool=tool, argument=json.dumps(arguments))


def tool_name(call: ToolCall) -> str:
    """For counters and routing, which a policy must not fill with names of its own."""
    return call.tool if call.tool in {*_COMMANDS, SUBMIT} else UNKNOWN_TOOL


def command_of(call: ToolCall) -> SandboxCommand | str:
    """The command of a well-formed call in our own terms, or a sentence on what is wrong with it."""
    make = _COMMANDS.get(call.tool)
    if make is None:
        return f"There is no tool {call.tool!r}."
    arguments = call_arguments(call)
    missing = [name for name in _REQUIRED.get(call.tool, ()) if not isinstance(arguments.get(name), str)]
    if missing:
        return f"The tool {call.tool} needs the text {' and '.join(missing)}."
    return make(arguments)


def _edited(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """One tool with several commands there; `undo_edit` has no counterpart."""
    path = arguments.get("path")
    match arguments.get("command"):
        case "view":
            start, end = _range(arguments.get("view_range"))
            return "view", {"path": arguments.get("path", "."), "start": start, "end": end}
        case "create":
            return "edit", {"path": path, "old": "", "new": arguments.get("file_text")}
        case "str_replace":
            return "edit", {"path": path, "old": arguments.get("old_str"), "new": arguments.get("new_str", "")}
        case "insert":
            return "insert", {"path": path, "after": arguments.get("insert_line"), "new": arguments.get("new_str")}
        case other:
            return f"edit command {other}"[:64], {}


def _range(value: Any) -> tuple[Any, Any]:
    """First and last line; in a function call they are written as text. None: the file's own."""
    try:
        start, end = json.loads(value) if isinstance(value, str) else value
    except (ValueError, TypeError, RecursionError):
        return None, None
    return start, None if end == -1 else end


def script_command(script: str, request: Mapping[str, Any], *, wall_s: float | None = None) -> SandboxCommand:
    """A script of `inside` with a JSON request on its input."""
    argv = ("/usr/bin/env", "python3", "-I", "-B", "-c", script_source(script))
    return SandboxCommand(argv=argv, input=json.dumps(request), wall_s=wall_s)


def script_source(name: str) -> str:
    return (Path(inside.__file__).parent / name).read_text(encoding="utf-8")


def _bash(arguments: Mapping[str, Any]) -> SandboxCommand:
    shell = "command -v bash >/dev/null && exec bash /dev/stdin || exec sh /dev/stdin"
    return SandboxCommand(argv=("/bin/sh", "-c", shell), input=str(arguments["command"]))


def _python(arguments: Mapping[str, Any]) -> SandboxCommand:
    """The working folder can be imported from, as by `python -c`."""
    return SandboxCommand(argv=("/usr/bin/env", "python3", "-"), input=str(arguments["code"]))


def _file_tool(name: str) -> Callable[[Mapping[str, Any]], SandboxCommand]:
    return lambda arguments: script_command("file_tools.py", {**arguments, "tool": name})


_COMMANDS: Final[dict[str, Callable[[Mapping[str, Any]], SandboxCommand]]] = {
    "bash": _bash,
    "python": _python,
    "view": _file_tool("view"),
    "search": _file_tool("search"),
    "edit": _file_tool("edit"),
    "insert": _file_tool("insert"),
}
_REQUIRED: Final = {
    "bash": ("command",),
    "python": ("code",),
    "search": ("pattern",),
    "edit": ("path", "old", "new"),
    "insert": ("path", "new"),
}
