"""Work that goes on beside its owner's, and waiting for it: none of it fails in silence, and all of it ends with the owner."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from libra_core.runtime.base.rpc import first_line

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks that nobody awaits. Owned by one event loop, whose owner calls `end` when it stops.

    The first failure stays in `fault`; each one is logged with its traceback and told to `on_fault`.
    """

    def __init__(self, owner: str, on_fault: Callable[[str], None] = lambda _: None) -> None:
        self._owner = owner
        self._on_fault = on_fault
        self._running: set[asyncio.Task[Any]] = set()
        self.fault: str | None = None
        """What failed, as a sentence."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)  # failure: `_reap` tells it
        self._running.add(task)  # the loop itself keeps only a weak reference, and a task may vanish in the middle of its work
        task.add_done_callback(self._reap)
        return task

    @property
    def running(self) -> int:
        return len(self._running)

    async def all_ended(self) -> None:
        """Wait for all of them, also for those that they start. Whoever calls it sets the deadline."""
        while self._running:
            await asyncio.wait(list(self._running))

    async def end(self, within_s: float) -> None:
        """Cancel what runs; work that does not let itself be cancelled is left behind, and said."""
        running = list(self._running)
        for task in running:
            task.cancel()
        _, left = await asyncio.wait(running, timeout=within_s) if running else (set(), set())
        if left:
            logger.warning("%s left %d tasks behind that did not end within %.0f s", self._owner, len(left), within_s)

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("%s failed at a task", self._owner, exc_info=error)
            sentence = f"{type(error).__name__}: {first_line(error)}"
            self.fault = self.fault or sentence
            self._on_fault(sentence)


class Changes:
    """Wakes whoever waits for a condition on what its owner holds. Owned by one event loop.

    The owner rings after each change, from plain functions too, which an `asyncio.Condition` does not allow.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        # A new event for those that look after this change: one that was set for the last would never make them wait.
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Whether the condition came to hold in that time."""
        end_s = asyncio.get_running_loop().time() + within_s
        while not holds():
            left_s = end_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return False
            with suppress(TimeoutError):
                await asyncio.wait_for(self._next.wait(), left_s)
        return True
