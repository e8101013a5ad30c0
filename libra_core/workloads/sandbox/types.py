"""What is asked of a sandbox and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from libra_core.types.trajectory import ToolStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Bounds of one command with all its children together."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    processes: int
    output_bytes: int
    """Of standard output and standard error together; a command that writes more is ended."""
    file_bytes: int
    """Of one file."""
    disk_bytes: int
    """Of the private folders; looked at twice a second, so a fast writer may pass it by what it writes meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCommand:
    argv: tuple[str, ...]
    """The first is an absolute path inside the sandbox."""
    input: str = ""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    wall_s: float | None = None
    """Instead of the limits' own, when given."""


class CommandOutcome(StrEnum):
    """How a command ended, as the sandbox states it."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    CPU = "cpu"
    MEMORY = "memory"
    PROCESSES = "processes"
    OUTPUT = "output"
    DISK = "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    outcome: CommandOutcome
    exit_code: int | None
    """Negative: the number of the signal that ended it. None when the sandbox ended it."""
    output: str
    duration_s: float

    @property
    def status(self) -> ToolStatus:
        """The exit code decides, never the text."""
        if self.outcome is CommandOutcome.TIMEOUT:
            return ToolStatus.TIMEOUT
        return ToolStatus.OK if self.outcome is CommandOutcome.EXITED and self.exit_code == 0 else ToolStatus.ERROR

    @property
    def note(self) -> str:
        """One sentence on how it ended, for the policy."""
        if self.outcome is CommandOutcome.EXITED:
            return f"[exit code {self.exit_code}]"
        return f"[ended by the sandbox: {_SENTENCES[self.outcome]}]"

    @property
    def text(self) -> str:
        """What the policy reads: the output, and how it ended on a line of its own."""
        line_end = "" if self.output.endswith("\n") or not self.output else "\n"
        return f"{self.output}{line_end}{self.note}"


_SENTENCES = {
    CommandOutcome.TIMEOUT: "deadline passed",
    CommandOutcome.CPU: "too much CPU time",
    CommandOutcome.MEMORY: "too much memory",
    CommandOutcome.PROCESSES: "too many processes",
    CommandOutcome.OUTPUT: "too much output",
    CommandOutcome.DISK: "too much disk space",
}


class Sandbox(Protocol):
    """Private folders of one trajectory, in which one command at a time runs."""

    async def run(self, command: SandboxCommand) -> SandboxResult:
        """Never raises for what the command does; raises `SandboxLostError` when the sandbox itself fails."""
        ...

    async def close(self) -> None:
        """Nothing is left afterwards: no process, no file."""
        ...
