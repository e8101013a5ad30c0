"""Hybrid workers change sides as a whole or not at all, and the core alone says who trains; workers are stand-ins."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from libra_core.config import LibraConfig
from libra_core.elastic.membership import MemberState
from libra_core.planning.transition import transition
from libra_core.runtime.cluster.hybrid_pool import HybridPool
from libra_core.runtime.cluster.transitions import TransitionOutcome, carry_out
from libra_core.types.plan import Plan
from support.hybrid_workers import CONFIG, SERVING, FakeWorker, Join

ONE, TWO = replace(SERVING, hybrids_training=1), replace(SERVING, hybrids_training=2)


def run(claim: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(claim())


def pool_of(*fails: str, config: LibraConfig = CONFIG) -> tuple[HybridPool, list[FakeWorker]]:
    workers = [
        FakeWorker(slot=slot, join_report=Join(active_from=3), fails=fails[slot] if slot < len(fails) else "")
        for slot in range(2)
    ]
    return HybridPool(config, workers), workers  # type: ignore[arg-type]


async def move(pool: HybridPool, source: Plan, target: Plan) -> TransitionOutcome:
    return await carry_out(transition(source, target), pool.perform)


async def core_steps(pool: HybridPool, moving: "asyncio.Task[TransitionOutcome]") -> None:
    """Steps without any replica, until the transition has ended."""
    version = 4
    while not moving.done():
        await pool.note_active(version, {})
        version += 1
        await asyncio.sleep(0)


def test_to_training_and_back() -> None:
    async def claim() -> None:
        pool, workers = pool_of()
        assert (await move(pool, SERVING, ONE)).applied
        assert [worker.state for worker in workers] == ["trains", "serves"]
        assert list(pool.states().values()) == [MemberState.ACTIVE, MemberState.SERVING]
        leaving = asyncio.create_task(move(pool, ONE, SERVING))
        while not workers[0].asked:
            await asyncio.sleep(0)
        assert not leaving.done(), "it stays until the core has finished a step without it"
        await pool.note_active(4, {})
        assert (await leaving).applied
        assert [worker.state for worker in workers] == ["serves", "serves"]
        assert set(pool.states().values()) == {MemberState.SERVING}

    run(claim)


@pytest.mark.parametrize("action", ["drain", "stop_engine", "start_replica", "join"])
@pytest.mark.parametrize("slot", [0, 1])
def test_a_fault_at_any_action_to_training_leaves_everybody_serving(action: str, slot: int) -> None:
    async def claim() -> None:
        pool, workers = pool_of(*([""] * slot), action)
        moving = asyncio.create_task(move(pool, SERVING, TWO))
        await core_steps(pool, moving)  # whoever had joined leaves again
        outcome = await moving
        assert not outcome.applied
        assert outcome.plan == SERVING
        assert outcome.not_undone == ()
        assert "no luck" in outcome.error
        assert [worker.state for worker in workers] == ["serves", "serves"]
        assert set(pool.states().values()) == {MemberState.SERVING}

    run(claim)


@pytest.mark.parametrize("action", ["cut", "stop_replica", "start_engine", "admit"])
def test_a_fault_at_any_action_to_serving_leaves_it_training(action: str) -> None:
    async def claim() -> None:
        pool, workers = pool_of()
        assert (await move(pool, SERVING, ONE)).applied
        workers[0].fails = action
        moving = asyncio.create_task(move(pool, ONE, SERVING))
        await core_steps(pool, moving)
        outcome = await moving
        assert not outcome.applied
        assert (outcome.plan, outcome.not_undone) == (ONE, ())
        assert workers[0].state == "trains"
        assert pool.states()[0] is MemberState.ACTIVE

    run(claim)


def test_a_core_that_never_finishes_a_step_makes_the_leave_fail_with_a_sentence() -> None:
    async def claim() -> None:
        impatient = CONFIG.model_copy(update={"elastic": CONFIG.elastic.model_copy(update={"join_s": 0.05})})
        pool, workers = pool_of(config=impatient)
        assert (await move(pool, SERVING, ONE)).applied
        await pool.note_active(3, {0: workers[0].joined or 0})
        outcome = await move(pool, ONE, SERVING)
        assert not outcome.applied
        assert "waited 0 s (elastic.join_s) for the core to finish a step without it" in outcome.error
        assert workers[0].state == "trains"

    run(claim)


def test_who_is_missing_from_a_step_without_having_asked_is_lost_and_comes_back() -> None:
    async def claim() -> None:
        pool, workers = pool_of()
        assert (await move(pool, SERVING, TWO)).applied
        both = {worker.slot: worker.joined or 0 for worker in workers}
        assert await pool.note_active(2, {}) == {}, "it takes part from step 3 on"
        assert await pool.note_active(3, both) == {}
        assert await pool.note_active(4, {1: both[1]}) == {0: both[0]}
        pool.mark_lost(0, both[0] - 1)
        assert pool.states()[0] is MemberState.ACTIVE, "what is known of an earlier attempt is stale"
        pool.mark_lost(0, both[0])
        assert pool.order_places() == 1
        assert pool.states()[0] is MemberState.FAILED
        await pool.recover(0)
        assert [worker.state for worker in workers] == ["serves", "trains"]

        leaving = asyncio.create_task(move(pool, ONE, SERVING))
        await core_steps(pool, leaving)
        assert (await leaving).applied
        assert [worker.state for worker in workers] == ["serves", "serves"], "the first place is the one that trains"

    run(claim)


def test_leaving_a_replica_that_dies_meanwhile_succeeds() -> None:
    async def claim() -> None:
        pool, workers = pool_of()
        assert (await move(pool, SERVING, ONE)).applied
        leaving = asyncio.create_task(move(pool, ONE, SERVING))
        while not workers[0].asked:
            await asyncio.sleep(0)
        assert await pool.note_active(9, {}) == {}, "it had asked"
        assert (await leaving).applied
        assert workers[0].state == "serves"

    run(claim)
