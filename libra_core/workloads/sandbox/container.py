"""A container per trajectory, for instances that come as an image; by the docker or podman command."""

import contextlib
import time
import uuid
from dataclasses import replace
from typing import Final

from libra_core.errors import SandboxLostError
from libra_core.workloads.sandbox.process import Conversation, converse
from libra_core.workloads.sandbox.types import Outcome, SandboxCommand, SandboxLimits, SandboxResult

_START_S: Final = 300.0
_END_S: Final = 60.0
_SLACK_S: Final = 10.0
_KILLED: Final = {137, -9}
_NOT_RUNNING: Final = {125}
"""Exit code of the container program for its own failures."""
_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


class ContainerSandbox:
    """Implements `types.Sandbox`. A command that passes its deadline is killed with its group; what it daemonised lives until
    `close` removes the container, within the container's own limits."""

    def __init__(self, program: str, name: str, limits: SandboxLimits) -> None:
        self._program = program
        self._name = name
        self._limits = limits

    @classmethod
    async def start(cls, program: str, image: str, limits: SandboxLimits) -> "ContainerSandbox":
        """Raises `SandboxLostError` when the container program fails."""
        name = f"libra-{uuid.uuid4().hex[:12]}"
        sandbox = cls(program, name, limits)
        try:
            await sandbox._begin(image)
        except BaseException:
            with contextlib.suppress(SandboxLostError):
                await sandbox.close()  # a start that was cut short may still have made the container
            raise
        return sandbox

    async def _begin(self, image: str) -> None:
        said = await self._command(start_arguments(self._name, image, self._limits), deadline_s=_START_S)
        if said.exit_code != 0:
            raise SandboxLostError(f"{self._program} cannot run {image}: {_told(said)}")

    async def run(self, command: SandboxCommand) -> SandboxResult:
        limits = self._limits
        if command.wall_s is not None:
            limits = replace(limits, wall_s=command.wall_s)
        started_s = time.monotonic()
        said = await self._command(
            exec_arguments(self._name, command, limits),
            deadline_s=limits.wall_s + _SLACK_S,
            order=command.input.encode(),
            output_bytes=limits.output_bytes,
        )
        return _result(said, limits, time.monotonic() - started_s)

    async def close(self) -> None:
        await self._command(("rm", "--force", "--volumes", self._name), deadline_s=_END_S)

    async def _command(
        self, arguments: tuple[str, ...], *, deadline_s: float, order: bytes = b"", output_bytes: int = 65536
    ) -> Conversation:
        try:
            return await converse(
                (self._program, *arguments),
                order=order,
                output_bytes=output_bytes,
                deadline_s=deadline_s,
                environment=_ENVIRONMENT,
            )
        except OSError as error:
            raise SandboxLostError(f"{self._program} cannot be started: {error}") from None


def start_arguments(name: str, image: str, limits: SandboxLimits) -> tuple[str, ...]:
    """Without network and privileges. The image's own folders stay writable: the repository lies in one of them."""
    words = ["run", "--detach", "--init", "--name", name, "--network", "none", "--cap-drop", "ALL"]
    words += ["--security-opt", "no-new-privileges", "--pids-limit", str(limits.processes + 2)]
    words += ["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes), "--cpus", "1"]
    words += ["--ulimit", f"fsize={limits.file_bytes}", "--ulimit", "core=0"]
    return (*words, "--entrypoint", "sleep", image, "infinity")


def exec_arguments(name: str, command: SandboxCommand, limits: SandboxLimits) -> tuple[str, ...]:
    """The deadline is kept inside the container: ending the client would leave the command running."""
    words = ["exec"]
    if command.input:
        words.append("--interactive")
    for key, value in command.environment.items():
        words += ["--env", f"{key}={value}"]
    return (*words, name, "timeout", "--signal=KILL", f"{limits.wall_s:.3f}", *command.argv)


def _result(said: Conversation, limits: SandboxLimits, duration_s: float) -> SandboxResult:
    if said.exit_code in _NOT_RUNNING:
        raise SandboxLostError(f"the container is gone: {_told(said)}")
    outcome, exit_code = Outcome.EXITED, said.exit_code
    if said.over_output:
        outcome, exit_code = Outcome.OUTPUT, None
    elif said.timed_out or (said.exit_code in _KILLED and duration_s >= limits.wall_s):
        outcome, exit_code = Outcome.TIMEOUT, None
    output = (said.output + said.report).decode("utf-8", errors="replace")[: limits.output_bytes]
    return SandboxResult(outcome=outcome, exit_code=exit_code, output=output, duration_s=duration_s)


def _told(said: Conversation) -> str:
    return said.report.decode("utf-8", errors="replace").strip()[-300:] or f"exit code {said.exit_code}"
