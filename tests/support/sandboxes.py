"""Sandboxes for tests, and a look at what they left behind."""

import asyncio
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from libra_core.workloads.sandbox.isolation import Isolation
from libra_core.workloads.sandbox.local import LocalSandbox
from libra_core.workloads.sandbox.types import SandboxCommand, SandboxLimits, SandboxResult
from libra_core.workloads.sandbox.view import host_view

MIB = 1 << 20
LIMITS = SandboxLimits(
    wall_s=20.0,
    cpu_s=20.0,
    memory_bytes=256 * MIB,
    processes=24,
    output_bytes=64 * 1024,
    file_bytes=8 * MIB,
    disk_bytes=24 * MIB,
)


@dataclass(slots=True, kw_only=True)
class Trial:
    """One command in a fresh sandbox, marked so that whatever it left running can be found."""

    isolation: Isolation
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    left: list[int] = field(default_factory=list)
    folder_left: bool = True

    def run(
        self, script: str, *, prepare: Callable[[Path], None] = lambda folder: None, timeout_s: float | None = None, **limits: Any
    ) -> SandboxResult:
        """`limits` replace those of `LIMITS`; `timeout_s` cancels the call from outside."""
        return asyncio.run(self._run(script, prepare, replace(LIMITS, **limits), timeout_s))

    async def _run(
        self, script: str, prepare: Callable[[Path], None], limits: SandboxLimits, timeout_s: float | None
    ) -> SandboxResult:
        sandbox = LocalSandbox(self.isolation, host_view(), limits, prepare)
        command = SandboxCommand(argv=("/bin/sh", "-c", script), environment={"LIBRA_MARK": self.mark})
        try:
            async with asyncio.timeout(timeout_s):
                return await sandbox.run(command)
        finally:
            await self._release()
            await sandbox.close()
            self.folder_left = sandbox.home.exists()

    async def _release(self) -> None:
        """After a cancelled call the sandbox is taken down in the background."""
        for _ in range(100):
            self.left = marked_processes(self.mark)
            if not self.left:
                return
            await asyncio.sleep(0.05)


def marked_processes(mark: str) -> list[int]:
    """Processes of the whole host with the mark in their environment or in their command line."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if any(mark.encode() in Path(f"/proc/{name}/{place}").read_bytes() for place in ("environ", "cmdline")):
                    found.append(int(name))
            except OSError:
                continue
    return found
