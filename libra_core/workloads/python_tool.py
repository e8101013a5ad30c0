"""The Python tool: each call is a fresh interpreter in the trajectory's sandbox; files stay from call to call."""

from collections.abc import Callable
from typing import Final

from libra_core.types.trajectory import ToolCall, ToolReturn, ToolStatus
from libra_core.workloads.calls import call_arguments
from libra_core.workloads.sandbox.types import Sandbox, SandboxCommand

PYTHON_TOOL: Final = "python"
_USAGE: Final = 'Call it as {"name": "python", "arguments": {"code": "print(1 + 1)"}}.'

Answer = Callable[[ToolCall, ToolStatus, str, float], ToolReturn]


class PythonEpisode:
    """Implements `ports.environment.Episode`."""

    def __init__(self, sandbox: Sandbox, answer: Answer) -> None:
        self._sandbox = sandbox
        self._answer = answer

    async def step(self, call: ToolCall) -> ToolReturn:
        if call.malformed:
            return self._answer(call, ToolStatus.MALFORMED, f"{call.argument}. {_USAGE}", 0.0)
        code = call_arguments(call).get("code")
        if call.tool != PYTHON_TOOL or not isinstance(code, str) or not code.strip():
            return self._answer(call, ToolStatus.MALFORMED, f"The only tool is python. {_USAGE}", 0.0)
        result = await self._sandbox.run(SandboxCommand(argv=("/usr/bin/env", "python3", "-I", "-"), input=code))
        return self._answer(call, result.status, result.text, result.duration_s)

    async def submission(self) -> str:
        return ""

    async def close(self) -> None:
        await self._sandbox.close()
