"""Deadlines of tools and scores: the work's own time and its waits for a place on the host are bounded apart.

A crowded host is no mistake of the policy. So a call's deadline stands still while it waits for one of the places that an
environment hands out, and that wait has a bound of its own, past which infrastructure has failed.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import ParamSpec, TypeVar

from libra_core.errors import DeadlineError
from libra_core.types.trajectory import ToolReturn

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
_CLOCK: ContextVar["WorkClock | None"] = ContextVar("work_clock", default=None)


class WorkClock:
    """One piece of work; its task owns it. Waits for places may follow each other, not overlap."""

    def __init__(self, who: str, *, work_s: float, queue_s: float) -> None:
        """`queue_s` bounds all waits for places together; needs a running event loop."""
        self._who = who
        self._work_s = work_s
        self._queue_s = queue_s
        self._timeout = asyncio.timeout(work_s)
        self._now_s = asyncio.get_running_loop().time
        self._started_s = self._now_s()
        self._ended_s: float | None = None
        self._late_for = ""
        self.waited_s = 0.0
        """For places."""

    @property
    def busy_s(self) -> float:
        """Since the start, waits for places left out."""
        return (self._ended_s or self._now_s()) - self._started_s - self.waited_s

    @property
    def late(self) -> bool:
        """Whether the work's own time was up; tells `hold`'s `TimeoutError` from one that the work itself raised."""
        return self._timeout.expired() and not self._late_for

    @property
    def starved(self) -> bool:
        """Whether it waited too long for a place."""
        return bool(self._late_for)

    async def hold(self, work: Awaitable[Result]) -> Result:
        """Do the work; once per clock.

        Raises:
            TimeoutError: its own time is up.
            DeadlineError: it waited too long for a place.
        """
        token = _CLOCK.set(self)
        try:
            async with self._timeout:
                return await work
        except TimeoutError:
            if self._late_for:
                raise DeadlineError(
                    f"{self._who} waited {self._queue_s:g} s (rollout.queue_deadline_s) for a place: {self._late_for} allows no "
                    "more at once; raise it where the host has room, or let fewer trajectories run"
                ) from None
            raise
        finally:
            self._ended_s = self._now_s()
            _CLOCK.reset(token)

    @contextmanager
    def queued(self, bound: str) -> Generator[None]:
        """Around a wait for a place; `bound` names the setting that limits them."""
        if self._ended_s is not None or self._timeout.expired():  # what is still waited for then has no bound of its own
            yield
            return
        since_s = self._now_s()
        self._expire_after(self._queue_s - self.waited_s)
        try:
            yield
        finally:
            self.waited_s += self._now_s() - since_s
            if self._timeout.expired():
                self._late_for = bound
            else:
                self._expire_after(self._work_s - self.busy_s)

    async def answered(self, step: Awaitable[ToolReturn], late: Callable[[], ToolReturn]) -> ToolReturn:
        """The answer of a tool, or the one that its policy gets when its own time is up; with its seconds. Raises as `hold`."""
        try:
            answer = await self.hold(step)
        except TimeoutError:
            if not self.late:
                raise
            answer = late()
        return replace(answer, duration_s=self.busy_s, waited_s=self.waited_s)

    def _expire_after(self, seconds: float) -> None:
        self._timeout.reschedule(self._now_s() + max(0.0, seconds))


@contextmanager
def queued(bound: str) -> Generator[None]:
    """Around a wait for a place: the deadline of the work that waits stands still. Without a clock nothing happens."""
    clock = _CLOCK.get()
    if clock is None:
        yield
        return
    with clock.queued(bound):
        yield


async def take_place(places: asyncio.Semaphore, bound: str) -> None:
    """Acquire one of `places`, whose number the setting `bound` gives."""
    with queued(bound):
        await places.acquire()  # unbounded: the clock of the work bounds it


@asynccontextmanager
async def place(places: asyncio.Semaphore, bound: str) -> AsyncGenerator[None]:
    """Hold one of `places`."""
    await take_place(places, bound)
    try:
        yield
    finally:
        places.release()


async def in_thread(work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
    """`asyncio.to_thread`, whose threads are places too."""
    loop = asyncio.get_running_loop()
    begun = asyncio.Event()

    def started() -> Result:
        loop.call_soon_threadsafe(begun.set)
        return work(*arguments, **named)

    running = loop.run_in_executor(None, started)  # failure: raised below
    try:
        with queued("rollout.tool_threads"):
            await begun.wait()  # unbounded: the clock of the work bounds it
        return await running
    except asyncio.CancelledError:
        running.cancel()  # a thread that has begun goes on; one that has not, never begins
        raise
