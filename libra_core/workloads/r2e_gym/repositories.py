"""Where the repositories of a data set come from: opening one, collecting what changed, running the hidden tests."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, Protocol

from libra_core.errors import SandboxLostError
from libra_core.workloads.r2e_gym.tasks import RepairTask
from libra_core.workloads.r2e_gym.tools import script_command
from libra_core.workloads.r2e_gym.workspace import TaskFiles, read_changes
from libra_core.workloads.sandbox.host import SandboxHost
from libra_core.workloads.sandbox.types import CommandOutcome, Sandbox
from libra_core.workloads.work_clock import in_thread

_TOO_LARGE: Final = 3
"""Exit code of `collect.py` for more changes than can be carried."""


class Repositories(Protocol):
    async def open(self, instance: str) -> Sandbox:
        """A private copy; waits while the host has no room."""
        ...

    async def collect(self, sandbox: Sandbox, instance: str) -> str:
        """What was changed in it, as text; empty when that cannot be carried."""
        ...

    async def passes(self, instance: str, submission: str) -> bool:
        """Whether the hidden tests pass in a fresh copy with the changes; raises `SandboxLostError` when that is unknown."""
        ...


class MutatedPackages:
    """Implements `Repositories` for the embedded tasks."""

    def __init__(self, prepared: Path, tasks: Sequence[RepairTask], host: SandboxHost, *, test_wall_s: float) -> None:
        self._files = TaskFiles(prepared)
        self._tasks = {task.key: task for task in tasks}
        self._host = host
        self._test_wall_s = test_wall_s

    async def open(self, instance: str) -> Sandbox:
        return await self._host.open(self._files.fill(self._tasks[instance]))

    async def collect(self, sandbox: Sandbox, instance: str) -> str:
        manifest = await in_thread(self._files.manifest, self._tasks[instance])
        result = await sandbox.run(script_command("collect.py", manifest))
        if result.exit_code == 0:
            return result.output
        if result.exit_code == _TOO_LARGE or result.outcome is not CommandOutcome.EXITED:
            return ""  # a repository too large or too slow to read is the policy's doing
        raise SandboxLostError(f"the changes cannot be collected: {result.output[-300:]} {result.note}")

    async def passes(self, instance: str, submission: str) -> bool:
        task = self._tasks[instance]
        changes = read_changes(submission)
        if changes is None:
            return False
        request = {"tests": [asdict(test) for test in task.tests], "wall_s": self._test_wall_s / (len(task.tests) + 1)}
        async with self._host.opened(self._files.fill_with(task, changes)) as sandbox:
            result = await sandbox.run(script_command("hidden_tests.py", request, wall_s=self._test_wall_s))
        return result.outcome is CommandOutcome.EXITED and result.exit_code == 0
