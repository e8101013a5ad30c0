"""A deadline counts from the moment that work has its place; the wait for the place has a bound of its own."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from libra_core.errors import DeadlineError
from libra_core.workloads.work_clock import WorkClock, in_thread, place, queued
from support import virtual_time

BOUND = "workload.sandbox.commands_at_once"


async def crowded(clock: WorkClock, *, busy_s: float, work_s: float) -> str:
    """One place, held by somebody else for `busy_s`; then `work_s` of work."""
    places = asyncio.Semaphore(1)

    async def other() -> None:
        async with place(places, BOUND):
            await asyncio.sleep(busy_s)

    async def work() -> str:
        async with place(places, BOUND):
            await asyncio.sleep(work_s)
        return "done"

    holding = asyncio.create_task(other())
    await asyncio.sleep(0)
    try:
        return await clock.hold(work())
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        async with asyncio.timeout(1.0), place(places, BOUND):  # nothing keeps a place that it was not given
            pass


def test_waiting_for_a_place_costs_nothing_of_the_deadline() -> None:
    async def play() -> None:
        clock = WorkClock("t", work_s=1.5, queue_s=30.0)
        assert await crowded(clock, busy_s=2.0, work_s=0.0) == "done"
        assert clock.waited_s > 1.8
        assert clock.busy_s < 1.5

    virtual_time.run(play())


def test_the_deadline_goes_on_after_the_wait_with_what_was_left_of_it() -> None:
    async def play() -> None:
        clock = WorkClock("t", work_s=0.3, queue_s=10.0)
        with pytest.raises(TimeoutError):
            await crowded(clock, busy_s=0.2, work_s=30.0)
        assert clock.late
        assert 0.25 < clock.busy_s < 10.0

    virtual_time.run(play())


def test_a_place_that_does_not_come_is_a_failure_of_the_host_in_words() -> None:
    async def play() -> None:
        clock = WorkClock("trajectory g1.0", work_s=30.0, queue_s=0.1)
        with pytest.raises(
            DeadlineError, match=r"g1\.0 waited 0\.1 s \(rollout\.queue_deadline_s\) for a place: .*commands_at_once"
        ):
            await crowded(clock, busy_s=30.0, work_s=0.0)
        assert not clock.late

    virtual_time.run(play())


def test_all_waits_of_one_work_share_one_bound() -> None:
    async def play() -> None:
        clock = WorkClock("t", work_s=30.0, queue_s=0.4)

        async def waits_twice() -> None:
            for _ in range(2):
                with queued(BOUND):
                    await asyncio.sleep(0.3)

        with pytest.raises(DeadlineError):
            await clock.hold(waits_twice())

    virtual_time.run(play())


def test_a_timeout_of_the_work_itself_is_not_taken_for_its_deadline() -> None:
    async def play() -> None:
        async def broken() -> None:
            raise TimeoutError("the tool's own")

        clock = WorkClock("t", work_s=30.0, queue_s=30.0)
        with pytest.raises(TimeoutError, match="own"):
            await clock.hold(broken())
        assert not clock.late

    virtual_time.run(play())


def test_cleaning_up_after_the_deadline_may_wait_for_a_place_too() -> None:
    async def play() -> None:
        async def tidy() -> None:
            try:
                await asyncio.sleep(30.0)
            finally:
                with queued(BOUND):
                    await asyncio.sleep(0.01)

        clock = WorkClock("t", work_s=0.05, queue_s=30.0)
        with pytest.raises(TimeoutError):
            await clock.hold(tidy())
        assert clock.late

    virtual_time.run(play())


def test_waiting_for_a_thread_costs_nothing_of_the_deadline_and_a_late_call_never_begins() -> None:
    ran: list[str] = []
    free = threading.Event()

    async def play() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        holding = asyncio.get_running_loop().run_in_executor(None, free.wait)
        late = WorkClock("t", work_s=30.0, queue_s=0.05)
        with pytest.raises(DeadlineError, match=r"rollout\.tool_threads"):
            await late.hold(in_thread(ran.append, "late"))
        patient = WorkClock("t", work_s=1.5, queue_s=30.0)
        asyncio.get_running_loop().call_later(2.0, free.set)
        await patient.hold(in_thread(ran.append, "patient"))
        assert patient.waited_s > 1.8
        await holding

    asyncio.run(play())
    assert ran == ["patient"]


def test_without_a_clock_places_and_threads_work_all_the_same() -> None:
    async def play() -> None:
        async with place(asyncio.Semaphore(1), BOUND):
            assert await in_thread(max, 1, 2) == 2

    asyncio.run(play())


def test_clocks_of_tasks_that_run_side_by_side_are_their_own() -> None:
    async def play() -> None:
        places = asyncio.Semaphore(1)

        async def work() -> None:
            async with place(places, BOUND):
                await asyncio.sleep(0.05)

        clocks = [WorkClock(str(number), work_s=5.0, queue_s=5.0) for number in range(4)]
        started_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(clock.hold(work()) for clock in clocks))
        waits = sorted(clock.waited_s for clock in clocks)
        assert waits[0] < waits[1] < waits[2] < waits[3] < asyncio.get_running_loop().time() - started_s

    virtual_time.run(play())
