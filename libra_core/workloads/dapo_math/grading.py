"""Answers graded by `math-verify` in worker processes: it runs sympy on what a policy wrote, which may never end."""

import asyncio
import contextlib
import json
import subprocess
import sys
from typing import Final

from libra_core.errors import DeadlineError
from libra_core.workloads.dapo_math.answers import same_value, spelled_out
from libra_core.workloads.work_clock import place

_READY_S: Final = 60.0
"""For importing sympy on a busy host."""
_KILLED_S: Final = 5.0
_LIFE: Final = 1000
"""Answers after which a worker is replaced: what sympy remembers of them counts against its memory, and an answer that finds no
room there equals nothing.
"""


class GraderPool:
    """Workers start when first needed. One event loop owns them; a worker past its deadline is killed and replaced."""

    def __init__(self, *, workers: int, deadline_s: float, program: tuple[str, ...] = ()) -> None:
        self._deadline_s = deadline_s
        self._program = program or (sys.executable, "-m", "libra_core.workloads.dapo_math.grader")
        self._places = asyncio.Semaphore(workers)
        self._idle: list[_Worker] = []

    async def equal(self, gold: str, answer: str) -> bool:
        """Whether two answers are the same.

        Raises:
            DeadlineError: when that is not settled within the deadline; it says nothing about the answer.
        """
        plain = same_value(gold, answer)
        if plain is not None:
            return plain
        async with place(self._places, "workload.grade_workers"):
            worker = self._idle.pop() if self._idle else None
            try:
                worker = worker or await self._started()
                async with asyncio.timeout(self._deadline_s):
                    verdict = await worker.ask((spelled_out(gold), spelled_out(answer)))
            except (TimeoutError, EOFError) as error:
                raise DeadlineError(
                    f"no verdict on {answer[:80]!r} within workload.grade_deadline_s = {self._deadline_s:g} s "
                    f"({'the grader died' if isinstance(error, EOFError) else 'the grader hangs'})"
                ) from None
            finally:
                if worker is not None:
                    worker.asked += 1
                    self._release(worker)
            return verdict

    def close(self) -> None:
        while self._idle:
            self._idle.pop().kill()

    async def _started(self) -> "_Worker":
        worker = _Worker(self._program)
        try:
            async with asyncio.timeout(_READY_S):
                await worker.begin()
        except BaseException:
            worker.kill()
            raise
        return worker

    def _release(self, worker: "_Worker") -> None:
        """Back among the idle ones when it answered all it was asked and is not old."""
        if worker.asked == worker.answered and worker.asked < _LIFE:
            self._idle.append(worker)
        else:
            worker.kill()


class _Worker:
    def __init__(self, program: tuple[str, ...]) -> None:
        self.asked = self.answered = 0
        self._child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._transport: asyncio.BaseTransport | None = None

    async def begin(self) -> None:
        self._reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(self._reader)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, self._child.stdout)
        await self._line()

    async def ask(self, question: tuple[str, str]) -> bool:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise EOFError from None
        verdict = json.loads(await self._line())
        self.answered += 1
        return bool(verdict)

    def kill(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._child.kill()
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_KILLED_S)

    async def _line(self) -> bytes:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return line
