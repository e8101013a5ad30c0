"""The tools of a repository as commands in its sandbox."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from libra_core.types.trajectory import ToolCall
from libra_core.workloads.calls import call_arguments
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
_NAMES: Final = {
    "execute_bash": "bash",
    "run": "bash",
    "file_editor": "edit",
    "str_replace_editor": "edit",
    "finish": SUBMIT,
}
"""What R2E-Gym and SWE-agent call them."""


def tool_name(call: ToolCall) -> str:
    return _NAMES.get(call.tool, call.tool)


def command_of(call: ToolCall) -> SandboxCommand | str:
    """The command of a well-formed call, or a sentence on what is wrong with it."""
    make = _COMMANDS.get(tool_name(call))
    if make is None:
        return f"There is no tool {call.tool!r}."
    arguments = call_arguments(call)
    missing = [name for name in _REQUIRED.get(tool_name(call), ()) if not isinstance(arguments.get(name), str)]
    if missing:
        return f"The tool {tool_name(call)} needs the text {' and '.join(missing)}."
    return make(arguments)


def script_command(script: str, request: Mapping[str, Any], *, wall_s: float | None = None) -> SandboxCommand:
    """A script of `inside` with a JSON request on its input."""
    argv = ("/usr/bin/env", "python3", "-I", "-B", "-c", script_source(script))
    return SandboxCommand(argv=argv, input=json.dumps(request), wall_s=wall_s)


def script_source(name: str) -> str:
    return (Path(inside.__file__).parent / name).read_text(encoding="utf-8")


def _bash(arguments: Mapping[str, Any]) -> SandboxCommand:
    shell = "command -v bash >/dev/null && exec bash /dev/stdin || exec sh /dev/stdin"
    command = str(arguments.get("command", arguments.get("cmd")))
    return SandboxCommand(argv=("/bin/sh", "-c", shell), input=command)


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
}
_REQUIRED: Final = {"bash": ("command",), "python": ("code",), "search": ("pattern",), "edit": ("path", "old", "new")}
