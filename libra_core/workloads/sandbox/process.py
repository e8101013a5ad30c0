"""A child process read by the event loop alone: no thread waits for it."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import IO, Final

from libra_core.errors import SandboxLostError

GRACE_S: Final = 5.0
"""Between asking a child to end by closing its input, and SIGKILL."""
_CHUNK: Final = 65536
_MAX_REPORT: Final = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a child said until it ended."""

    output: bytes
    report: bytes
    """Its standard error."""
    over_output: bool
    timed_out: bool
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] | None
    """None: Libra's own."""
    reads_to_end: bool = False
    """It waits for the end of its input, which follows the order then. Libra's supervisors take the end for a request to stop."""


async def converse(program: Program, *, order: bytes, output_bytes: int, deadline_s: float) -> Conversation:
    """Start the program, write `order` and read it until it ends.

    Past `output_bytes`, past the deadline or when cancelled its input is closed, which asks it to end; SIGKILL follows.

    Raises:
        SandboxLostError: when its pipes stay open even then.
    """
    child = subprocess.Popen(
        list(program.argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=program.environment,
        cwd="/",
        start_new_session=True,
    )
    talk = _Talk(child, output_bytes)
    try:
        return await talk.hold(order, deadline_s, ends_order=program.reads_to_end)
    finally:
        talk.end()


class _Talk:
    """One child. Shut down in the order: input closed, child gone, pipes closed."""

    def __init__(self, child: "subprocess.Popen[bytes]", output_bytes: int) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._child = child
        self._input, self._stdout, self._stderr = child.stdin, child.stdout, child.stderr
        self._output_bytes = output_bytes
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._pidfd = os.pidfd_open(child.pid)
        self._loop.add_reader(self._pidfd, self._exited)
        self._kill: asyncio.TimerHandle | None = None
        self.over_output = False

    async def hold(self, order: bytes, deadline_s: float, *, ends_order: bool) -> Conversation:
        reading = asyncio.gather(self._read(self._stdout, self._output_bytes), self._read(self._stderr, _MAX_REPORT))
        try:
            timed_out = await self._is_late(reading, self._write(order, ends_order), deadline_s)
            output, report = await self._ended(reading)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return Conversation(
            output=output,
            report=report,
            over_output=self.over_output,
            timed_out=timed_out,
            exit_code=self._child.returncode,
        )

    async def _is_late(
        self, reading: "asyncio.Future[tuple[bytes, bytes]]", writing: Coroutine[None, None, None], deadline_s: float
    ) -> bool:
        """Whether the child had to be asked to end at its deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                await writing
                await asyncio.shield(reading)
                await self._gone.wait()
        except TimeoutError:
            self._ask_to_end()
            return True
        return False

    async def _ended(self, reading: "asyncio.Future[tuple[bytes, bytes]]") -> tuple[bytes, bytes]:
        """Raises `SandboxLostError` when a process that got away from the child still holds its pipes after SIGKILL."""
        try:
            async with asyncio.timeout(2 * GRACE_S):
                said = await reading
                await self._gone.wait()
        except TimeoutError:
            raise SandboxLostError("a process outlived its sandbox and holds its pipes open") from None
        return said

    async def _write(self, order: bytes, ends_order: bool) -> None:
        """In pieces that a pipe takes without blocking; the child reads the whole order before anything else."""
        os.set_blocking(self._input.fileno(), False)
        left = memoryview(order)
        while left:
            try:
                left = left[os.write(self._input.fileno(), left) :]
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except BrokenPipeError:
                return
        if ends_order:
            self._input.close()

    async def _read(self, stream: IO[bytes], limit: int) -> bytes:
        """Everything up to `limit`; what follows is read and thrown away, so that the child never blocks on it."""
        reader = asyncio.StreamReader(limit=_CHUNK)
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
        kept = bytearray()
        try:
            while part := await reader.read(_CHUNK):
                kept += part[: limit - len(kept)]
                if len(kept) >= limit and stream is self._stdout and not self.over_output:
                    self.over_output = True
                    self._ask_to_end()
        finally:
            transport.close()
        return bytes(kept)

    def _ask_to_end(self) -> None:
        with contextlib.suppress(OSError):
            self._input.close()
        if self._kill is None and not self._gone.is_set():
            self._kill = self._loop.call_later(GRACE_S, self._kill_now)

    def _kill_now(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._child.wait()  # unbounded: the pidfd says that it has ended
        if self._kill is not None:
            self._kill.cancel()
        self._gone.set()

    def end(self) -> None:
        """The child is asked to end if it still runs; it is reaped when it does, whether or not anybody waits."""
        self._ask_to_end()
