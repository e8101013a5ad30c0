"""A container per trajectory, for instances that come as an image; by the docker or podman command.

The exit code of `exec` cannot tell a lost container from a failed command. Both clients use 126 and 127 for a command that
cannot be invoked or found. For a container that is stopped or missing and for an engine that is down, docker's client ends with
1, as any program may (docker/cli `RunExec` returns the daemon's error; seen with client 28.2), podman's with 126 for a stopped
and 125 for a missing one (containers/podman pull request 3307). So whatever did not end with 0 is followed by the question
whether the container runs.
"""

import logging
import time
import uuid
from dataclasses import replace
from typing import Final

from libra_core.errors import SandboxLostError
from libra_core.workloads.sandbox.process import Conversation, Program, converse
from libra_core.workloads.sandbox.types import CommandOutcome, SandboxCommand, SandboxLimits, SandboxResult

logger = logging.getLogger(__name__)

_END_S: Final = 60.0
"""For removing a container: the engine gives its processes 10 s and then deletes its files."""
_INSPECT_S: Final = 30.0
"""For asking the engine about a container, which takes milliseconds unless the engine hangs."""
_SLACK_S: Final = 10.0
"""Beyond the deadline that is kept inside the container, for the engine to start the command and to report its end."""
_KILLED: Final = 137
"""Of `timeout` when it had to kill, and of a command that the kernel killed for its memory."""
LABEL: Final = "libra.sandbox"
"""Finds what a killed run left: `docker ps --filter label=libra.sandbox`."""
FIRST_PROCESS: Final = 'trap "" HUP INT QUIT TERM; while :; do sleep 3600 & wait; done'
"""Process 1: reaps orphans, which count against the limit of processes, and cannot be ended from within: the kernel keeps signals
that it does not handle from process 1, and its `sleep` is replaced when a command kills it. So a container that is gone was lost.
"""


class ContainerSandbox:
    """Implements `types.Sandbox`. A command that passes its deadline is killed with its group; what it daemonised lives until
    `close` removes the container, within the container's own limits.

    The client runs with Libra's own environment, which may say where the engine is; commands see none of it.
    """

    def __init__(self, program: str, name: str, limits: SandboxLimits) -> None:
        self._program = program
        self._name = name
        self._limits = limits

    @classmethod
    async def start(cls, program: str, image: str, limits: SandboxLimits, *, deadline_s: float) -> "ContainerSandbox":
        """Fetches the image where the engine lacks it, within the deadline.

        Raises `SandboxLostError` when the container program fails.
        """
        name = f"libra-{uuid.uuid4().hex[:12]}"
        sandbox = cls(program, name, limits)
        try:
            await sandbox._begin(image, deadline_s)
        except BaseException:
            await sandbox.close()  # a start that was cut short may still have made the container
            raise
        return sandbox

    async def _begin(self, image: str, deadline_s: float) -> None:
        said = await self._command(start_arguments(self._name, image, self._limits), deadline_s=deadline_s)
        if said.timed_out:
            raise SandboxLostError(
                f"{self._program} had not started {image} after {deadline_s:g} s; fetch the image beforehand or raise "
                "workload.sandbox.container_start_s"
            )
        if said.exit_code != 0:
            raise SandboxLostError(f"{self._program} cannot run {image}: {_message_of(said)}")

    async def run(self, command: SandboxCommand) -> SandboxResult:
        limits = self._limits
        if command.wall_s is not None:
            limits = replace(limits, wall_s=command.wall_s)
        started_s = time.monotonic()
        said = await self._command(
            exec_arguments(self._name, command, limits),
            deadline_s=limits.wall_s + _SLACK_S,
            order=command.input.encode(errors="replace"),
            output_bytes=limits.output_bytes,
        )
        duration_s = time.monotonic() - started_s
        if said.exit_code != 0:
            await self._still_there(said)
        return _result(said, limits, duration_s)

    async def _still_there(self, said: Conversation) -> None:
        """Raises `SandboxLostError` unless the engine states that the container runs; `said` is what made one ask."""
        asked = await self._command(("inspect", "--format", "{{.State.Running}}", self._name), deadline_s=_INSPECT_S)
        if asked.exit_code != 0 or asked.output.strip() != b"true":
            raise SandboxLostError(f"the container is gone: {_message_of(asked if asked.exit_code else said)}")

    async def close(self) -> None:
        """A container that stays is logged: what ran in it is over all the same."""
        try:
            said = await self._command(("rm", "--force", "--volumes", self._name), deadline_s=_END_S)
        except SandboxLostError as error:
            logger.warning("container %s was not removed: %s", self._name, error)
        else:
            if said.exit_code != 0:
                logger.warning("container %s was not removed: %s", self._name, _message_of(said))

    async def _command(
        self, arguments: tuple[str, ...], *, deadline_s: float, order: bytes = b"", output_bytes: int = 65536
    ) -> Conversation:
        program = Program(argv=(self._program, *arguments), environment=None, reads_to_end=True)
        try:
            return await converse(program, order=order, output_bytes=output_bytes, deadline_s=deadline_s)
        except OSError as error:
            raise SandboxLostError(f"{self._program} cannot be started: {error}") from None


def start_arguments(name: str, image: str, limits: SandboxLimits) -> tuple[str, ...]:
    """Without network and privileges. The image's own folders stay writable: the repository lies in one of them."""
    words = ["run", "--detach", "--name", name, "--label", LABEL, "--network", "none", "--cap-drop", "ALL"]
    words += ["--security-opt", "no-new-privileges", "--pids-limit", str(limits.processes + 2)]
    words += ["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes), "--cpus", "1"]
    words += ["--ulimit", f"fsize={limits.file_bytes}", "--ulimit", "core=0"]
    return (*words, "--entrypoint", "/bin/sh", image, "-c", FIRST_PROCESS)


def exec_arguments(name: str, command: SandboxCommand, limits: SandboxLimits) -> tuple[str, ...]:
    """The deadline is kept inside the container: ending the client would leave the command running."""
    words = ["exec"]
    if command.input:
        words.append("--interactive")
    for key, value in command.environment.items():
        words += ["--env", f"{key}={value}"]
    return (*words, name, "timeout", "--signal=KILL", f"{limits.wall_s:.3f}", *command.argv)


def _result(said: Conversation, limits: SandboxLimits, duration_s: float) -> SandboxResult:
    outcome, exit_code = CommandOutcome.EXITED, said.exit_code
    if said.over_output:
        outcome, exit_code = CommandOutcome.OUTPUT, None
    elif said.timed_out or (said.exit_code == _KILLED and duration_s >= limits.wall_s):
        outcome, exit_code = CommandOutcome.TIMEOUT, None
    output = (said.output + said.report).decode("utf-8", errors="replace")[: limits.output_bytes]
    return SandboxResult(outcome=outcome, exit_code=exit_code, output=output, duration_s=duration_s)


def _message_of(said: Conversation) -> str:
    return said.report.decode("utf-8", errors="replace").strip()[-300:] or f"exit code {said.exit_code}"
