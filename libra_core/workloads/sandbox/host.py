"""All sandboxes of one process: chooses how to isolate, bounds how many are open and how many commands run."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from libra_core.config.sandbox import SandboxConfig
from libra_core.workloads.sandbox.container import ContainerSandbox
from libra_core.workloads.sandbox.isolation import Isolation
from libra_core.workloads.sandbox.local import LocalSandbox, find_isolation
from libra_core.workloads.sandbox.types import Sandbox, SandboxCommand, SandboxLimits, SandboxResult
from libra_core.workloads.sandbox.view import FileView, host_view
from libra_core.workloads.work_clock import in_thread, place, take_place

_MIB = 1 << 20
_OPEN, _COMMANDS = "workload.sandbox.open_at_once", "workload.sandbox.commands_at_once"


def limits_of(config: SandboxConfig) -> SandboxLimits:
    return SandboxLimits(
        wall_s=config.wall_s,
        cpu_s=config.cpu_s,
        memory_bytes=config.memory_mib * _MIB,
        processes=config.processes,
        output_bytes=config.output_kib * 1024,
        file_bytes=config.file_mib * _MIB,
        disk_bytes=config.disk_mib * _MIB,
    )


class _Bounded:
    """A sandbox whose commands wait for their turn, and whose end frees its place."""

    def __init__(self, sandbox: Sandbox, commands: asyncio.Semaphore, places: asyncio.Semaphore) -> None:
        self._sandbox = sandbox
        self._commands = commands
        self._places = places
        self._open = True

    async def run(self, command: SandboxCommand) -> SandboxResult:
        async with place(self._commands, _COMMANDS):
            return await self._sandbox.run(command)

    async def close(self) -> None:
        if self._open:
            self._open = False
            try:
                await self._sandbox.close()
            finally:
                self._places.release()


class SandboxHost:
    """One event loop owns it. Nothing is held while a sandbox waits for a place but the wait itself."""

    def __init__(self, config: SandboxConfig, view: FileView | None = None) -> None:
        self._config = config
        self._view = view or host_view()
        self._limits = limits_of(config)
        self._places = asyncio.Semaphore(config.open_at_once)
        self._commands = asyncio.Semaphore(config.commands_at_once)
        self._choosing = asyncio.Lock()
        self._isolation: Isolation | None = None

    async def isolation(self) -> Isolation:
        """Raises `ResourceError` when the host can isolate nothing and the configuration does not allow that."""
        async with self._choosing:
            if self._isolation is None:
                self._isolation = await find_isolation(
                    self._limits, wanted=self._config.isolation, unsafe_local=self._config.unsafe_local
                )
            return self._isolation

    async def open(self, prepare: Callable[[Path], None]) -> Sandbox:
        """A sandbox of this host; `prepare` fills its working folder and runs in a thread."""
        isolation = await self.isolation()
        await take_place(self._places, _OPEN)
        try:
            sandbox = await _made(lambda: LocalSandbox(isolation, self._view, self._limits, prepare))
        except BaseException:
            self._places.release()
            raise
        return _Bounded(sandbox, self._commands, self._places)

    async def open_image(self, image: str) -> Sandbox:
        """A container of an image that the container program has or can fetch."""
        await take_place(self._places, _OPEN)
        try:
            sandbox = await ContainerSandbox.start(
                self._config.container, image, self._limits, deadline_s=self._config.container_start_s
            )
        except BaseException:
            self._places.release()
            raise
        return _Bounded(sandbox, self._commands, self._places)

    @asynccontextmanager
    async def opened(self, prepare: Callable[[Path], None]) -> AsyncGenerator[Sandbox]:
        sandbox = await self.open(prepare)
        try:
            yield sandbox
        finally:
            await sandbox.close()


async def _made(make: Callable[[], LocalSandbox]) -> LocalSandbox:
    """In a thread, which cannot be cancelled: of thread and caller, whoever is last removes what nobody waits for any more."""
    lock = threading.Lock()
    made: list[LocalSandbox] = []
    gone = False

    def work() -> LocalSandbox:
        sandbox = make()
        with lock:
            made.append(sandbox)
            unwanted = gone
        if unwanted:
            sandbox.remove()
        return sandbox

    try:
        return await in_thread(work)
    except asyncio.CancelledError:
        with lock:
            gone = True
        for sandbox in made:
            sandbox.remove()
        raise
