"""The controller keeps plan and workers together through flips, faults and deaths; workers and core are stand-ins."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.elastic.membership import MemberState
from libra_core.errors import ResourceError
from libra_core.planning.transition import transition
from libra_core.runtime.cluster.controller import ClusterControllerActor
from libra_core.runtime.cluster.hybrid_pool import HybridPool
from libra_core.types.ids import EngineId
from libra_core.types.plan import Plan
from support.actors import FakeActor
from support.core_engines import FakeWorld, config_of, fleet_plan
from support.hybrid_workers import CONFIG, SERVING, FakeWorker

ONE, TWO = replace(SERVING, hybrids_training=1), replace(SERVING, hybrids_training=2)
FAULTS = ("", "drain", "stop_engine", "start_replica", "join", "cut", "stop_replica", "start_engine", "admit")


class Controller(ClusterControllerActor):
    """Nothing of it is on Ray."""

    def __init__(self, *fails: str) -> None:
        super().__init__(CONFIG, "nowhere", SERVING, None)
        self.workers = [FakeWorker(slot=slot, fails=fails[slot] if slot < len(fails) else "") for slot in range(2)]
        self._pool = HybridPool(CONFIG, self.workers)  # type: ignore[arg-type]
        self.version = 0

    async def _placement_faults(self) -> list[str]:
        return []

    async def step(self) -> None:
        """The core finishes one: whoever is connected and has not asked to leave is in the next."""
        self.version += 1
        active = {w.slot: w.joined for w in self.workers if w.replica and w.alive and w.joined is not None and not w.asked}
        await self.note_active(self.version, active)

    async def flip(self, training: int) -> bool:
        """While the core keeps stepping."""
        target = replace(self._plan, hybrids_training=training)
        if target == self._plan:
            return True
        moving = asyncio.create_task(self.carry_out(transition(self._plan, target)))
        while not moving.done():
            await self.step()
            await asyncio.sleep(0)
        return (await moving).applied

    async def all_ended(self) -> None:
        await self._tasks.all_ended()


def run(claim: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(claim())


def test_a_plan_that_changed_meanwhile_is_not_moved_from() -> None:
    async def claim() -> None:
        controller = Controller()
        outcome = await controller.carry_out(transition(ONE, TWO))
        assert not outcome.applied
        assert outcome.plan == SERVING
        assert outcome.error == "the plan has changed since this was decided"

    run(claim)


def test_a_replica_that_dies_gives_its_gpus_back_and_the_plan_says_so() -> None:
    async def claim() -> None:
        controller = Controller()
        assert await controller.flip(2)
        await controller.step()
        controller.workers[0].die()
        await controller.step()
        assert (await controller.plan()) == ONE
        await controller.all_ended()
        assert [worker.state for worker in controller.workers] == ["serves", "trains"]
        (recovery,) = await controller.recoveries()
        assert (recovery.slot, recovery.error) == (0, "")
        assert recovery.serving_s is not None
        assert await controller.flip(0)
        assert [worker.state for worker in controller.workers] == ["serves", "serves"]

    run(claim)


def test_a_recovery_that_fails_is_told() -> None:
    async def claim() -> None:
        controller = Controller()
        assert await controller.flip(1)
        await controller.step()
        controller.workers[0].fails = "start_engine"
        controller.workers[0].die()
        await controller.step()
        await controller.all_ended()
        (recovery,) = await controller.recoveries()
        assert (recovery.serving_s, recovery.error) == (None, "no luck with start_engine")

    run(claim)


def test_a_task_of_the_controller_that_fails_is_told_to_whoever_waits_for_groups() -> None:
    async def claim() -> None:
        controller = Controller()
        controller._core.coordinator = coordinator = FakeActor()
        assert await controller.flip(1)
        await controller.step()

        async def broken(_slot: int) -> None:
            raise AttributeError("a mistake of ours")

        controller._pool.recover = broken  # type: ignore[method-assign]
        controller.workers[0].die()
        await controller.step()
        await controller.all_ended()
        assert coordinator.asked("note_fault") == [("AttributeError: a mistake of ours",)]

    run(claim)


def test_a_replica_is_called_back_for_an_engine_that_cannot_be_replaced() -> None:
    async def claim() -> None:
        controller, world = Controller(), FakeWorld(free=[1])
        controller._core = world.core(CONFIG)
        await controller._core.start_first((1,))
        assert await controller.flip(1)
        await controller.step()
        world.fails = "start"
        with pytest.raises(ResourceError, match="no luck with start"):
            await controller.replace_engine(EngineId("engine-0"))
        while controller._tasks.running:
            await controller.step()
            await asyncio.sleep(0)
        assert await controller.plan() == SERVING
        assert [worker.state for worker in controller.workers] == ["serves", "serves"]

    run(claim)


class Divided(ClusterControllerActor):
    """A fleet without hybrids, of which nothing is on Ray."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(config_of(), "nowhere", plan, None)
        self.world = FakeWorld(free=[plan.rollout.num_gpus])
        self._core = self.world.core(self._config)
        self._places = self.world  # type: ignore[assignment]
        self.misplaced: list[str] = []

    async def start(self) -> None:
        for engine in await self._core.start_first(self._plan.rollout.degrees):
            self.world.serving[engine.engine_id] = engine

    async def _placement_faults(self) -> list[str]:
        return self.misplaced


def test_engines_are_divided_anew_and_the_plan_says_so() -> None:
    async def claim() -> None:
        controller = Divided(fleet_plan({1: 4}))
        await controller.start()
        for target in (fleet_plan({2: 2}), fleet_plan({4: 1}), fleet_plan({1: 4})):
            outcome = await controller.carry_out(transition(await controller.plan(), target))
            assert outcome.applied, outcome.error
            assert await controller.plan() == target
            assert controller.world.served() == list(target.rollout.degrees)
            assert controller.world.expects[-1] == 0.0

    run(claim)


def test_an_engine_that_ray_did_not_place_as_asked_leaves_the_old_plan() -> None:
    async def claim() -> None:
        controller = Divided(fleet_plan({1: 2}))
        await controller.start()
        controller.misplaced = ["engine-2 spans nodes a, b"]
        outcome = await controller.carry_out(transition(fleet_plan({1: 2}), fleet_plan({2: 1})))
        assert not outcome.applied
        assert outcome.error == "after start engine engine-2 (tp 2): engine-2 spans nodes a, b"
        assert await controller.plan() == fleet_plan({1: 2})
        assert controller.world.served() == [1, 1]

    run(claim)


def test_engines_beside_hybrids_are_not_divided_anew() -> None:
    async def claim() -> None:
        controller = Controller()
        target = replace(SERVING, rollout=fleet_plan({3: 1}).rollout)
        outcome = await controller.carry_out(transition(SERVING, target))
        assert not outcome.applied
        assert "only a fleet without hybrids" in outcome.error
        assert [worker.state for worker in controller.workers] == ["serves", "serves"]

    run(claim)


def test_an_engine_wider_than_any_node_is_refused_before_anything_stops() -> None:
    async def claim() -> None:
        controller = Divided(fleet_plan({1: 4}))
        await controller.start()
        controller.world.largest = 2
        outcome = await controller.carry_out(transition(fleet_plan({1: 4}), fleet_plan({4: 1})))
        assert not outcome.applied
        assert outcome.error.startswith("an engine of tp 4 needs as many devices in one node, and the largest has 2")
        assert controller.world.served() == [1, 1, 1, 1]
        assert controller.world.expects == []

    run(claim)


def test_nothing_replaces_an_engine_that_the_plan_does_not_have() -> None:
    async def claim() -> None:
        controller = Divided(fleet_plan({1: 2}))
        await controller.start()
        assert await controller.replace_engine(EngineId("engine-7")) is None

    run(claim)


OPERATIONS = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 2)),
    st.tuples(st.just("die"), st.integers(0, 1)),
    st.tuples(st.just("break"), st.tuples(st.integers(0, 1), st.sampled_from(FAULTS))),
    st.tuples(st.just("step"), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=12))
def test_in_any_order_gpus_hold_one_thing_and_the_plan_counts_who_trains(operations: list[tuple[str, Any]]) -> None:
    async def claim() -> None:
        controller = Controller()
        for name, detail in operations:
            if name == "flip":
                await asyncio.wait_for(controller.flip(detail), 10.0)
            elif name == "die":
                controller.workers[detail].die()
                await controller.step()
            elif name == "break":
                controller.workers[detail[0]].fails = detail[1]
            else:
                await controller.step()
            await asyncio.wait_for(controller.all_ended(), 10.0)
            training = [w.slot for w in controller.workers if w.state == "trains"]
            assert (await controller.plan()).hybrids_training == len(training)
            assert all(not (worker.engine and worker.replica) for worker in controller.workers)
            for worker in controller.workers:
                known = controller._pool.states()[worker.slot]
                assert (known is MemberState.ACTIVE) == (worker.state == "trains")
                assert known is not MemberState.SERVING or worker.state == "serves"

    run(claim)
