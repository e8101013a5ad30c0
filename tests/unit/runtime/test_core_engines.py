"""Core engines are divided anew as a whole or not at all; engines, devices and the fleet are stand-ins."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.errors import ResourceError
from libra_core.planning.transition import transition
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.cluster.core_engines import CoreEngines
from libra_core.runtime.cluster.transitions import TransitionOutcome, carry_out
from libra_core.types.ids import EngineId
from libra_core.types.plan import Plan
from libra_core.types.transition import Action, Verb
from support.core_engines import FakeWorld, config_of, fleet_plan

ONES, TWOS, FOUR = fleet_plan({1: 4}), fleet_plan({2: 2}), fleet_plan({4: 1})
MOVES = [(ONES, TWOS), (TWOS, ONES), (ONES, FOUR), (FOUR, ONES), (TWOS, FOUR), (FOUR, TWOS)]


def run(claim: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(claim())


async def running(plan: Plan, world: FakeWorld) -> CoreEngines:
    core = world.core(config_of())
    for engine in await core.start_first(plan.rollout.degrees):
        world.serving[engine.engine_id] = engine
    core.number_places(plan.rollout.degrees, world.node_of)
    return core


async def move(
    core: CoreEngines, world: FakeWorld, source: Plan, target: Plan, *, after: Callable[[int], None] = lambda _number: None
) -> TransitionOutcome:
    """As the controller does it; `after` is told the number of each action that is done, in the order in which they began."""
    numbers = itertools.count()

    async def perform(action: Action) -> None:
        number = next(numbers)
        await core.perform(action)
        after(number)

    change = transition(source, target)
    world.least = 10**6
    await core.announce((*source.rollout.degrees, *target.rollout.degrees), core.bound_s(change))
    outcome = await carry_out(change, perform)
    core.number_places(outcome.plan.rollout.degrees, world.node_of)
    await core.conclude(outcome.plan.rollout.degrees)
    return outcome


def whole(core: CoreEngines, world: FakeWorld, plan: Plan, devices: int) -> bool:
    """Every engine of the plan serves, on devices of its own, and nothing else holds any."""
    return (
        world.served() == sorted(plan.rollout.degrees)
        and sum(world.free) == devices - plan.rollout.num_gpus
        and len(core.slots) == plan.rollout.num_engines
        and world.degrees == tuple(sorted(set(plan.rollout.degrees)))
        and world.expects[-1] == 0.0
    )


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_all_engines_are_replaced_by_those_of_the_new_plan_and_their_devices_suffice(source: Plan, target: Plan) -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(source, world)
        assert (await move(core, world, source, target)).applied
        assert whole(core, world, target, 4)
        assert (await move(core, world, target, source)).applied, "and back, by the new numbers"
        assert whole(core, world, source, 4)

    run(claim)


@pytest.mark.parametrize(("source", "target"), [(ONES, TWOS), (TWOS, ONES)])
def test_some_engine_always_serves_where_half_of_the_devices_hold_a_new_one(source: Plan, target: Plan) -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(source, world)
        await move(core, world, source, target)
        assert world.least >= 1

    run(claim)


def test_a_fleet_that_cannot_keep_an_engine_tells_how_long_none_will_serve() -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)
        await move(core, world, ONES, FOUR)
        assert world.least == 0
        announced_s, over_s = world.expects
        rollout = config_of().rollout
        assert announced_s > 2 * rollout.engine_start_deadline_s, "a start and the way back fit into it"
        assert over_s == 0.0

    run(claim)


@pytest.mark.parametrize(("source", "target"), [(ONES, TWOS), (ONES, FOUR), (TWOS, ONES)])
def test_a_fault_after_any_action_brings_every_engine_of_the_old_plan_back(source: Plan, target: Plan) -> None:
    async def claim(at: int) -> None:
        def after(number: int) -> None:
            if number == at:
                raise ResourceError("no luck")

        world = FakeWorld(free=[4])
        core = await running(source, world)
        outcome = await move(core, world, source, target, after=after)
        assert (outcome.applied, outcome.plan, outcome.error, outcome.not_undone) == (False, source, "no luck", ())
        assert outcome.failed == transition(source, target).actions[at]
        assert whole(core, world, source, 4)
        assert (await move(core, world, source, target)).applied, "nothing stands in the way of another try"
        assert whole(core, world, target, 4)

    for at in range(len(transition(source, target).actions)):
        run(lambda at=at: claim(at))


@pytest.mark.parametrize("what", ["retire", "reserve", "start", "admit"])
def test_whatever_an_action_dies_of_the_old_plan_comes_back(what: str) -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)
        world.fails = what
        outcome = await move(core, world, ONES, TWOS)
        assert (outcome.applied, outcome.error) == (False, f"no luck with {what}")
        assert whole(core, world, ONES, 4)

    run(claim)


def test_every_action_done_twice_is_done_once() -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)
        await core.announce((1, 2), 60.0)
        for action in transition(ONES, TWOS).actions:
            await core.perform(action)
            await core.perform(action)
        assert world.served() == [2, 2]
        assert sum(world.free) == 0

    run(claim)


def test_places_have_new_numbers_after_a_move_and_engines_new_names() -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)
        first = set(world.names)
        await move(core, world, ONES, TWOS)
        assert not first & set(world.serving)
        names = sorted(world.serving)
        for number in (1, 0):
            await core.perform(Action(verb=Verb.DRAIN_ENGINE, target=f"engine-{number}", tp=2))
            assert len(world.serving) == number
        assert names == ["engine-4", "engine-5"]

    run(claim)


def test_engines_that_leave_together_are_neighbours_on_a_node() -> None:
    """Spread over two nodes, one engine of each would leave no room for one of tp 2."""

    async def claim() -> None:
        world = FakeWorld(free=[2, 2], spread=True)
        core = await running(ONES, world)
        assert [engine.handle.node for engine in world.serving.values()] == [0, 1, 0, 1]
        outcome = await move(core, world, ONES, TWOS)
        assert outcome.applied, outcome.error
        assert world.least == 1

    run(claim)


def test_an_engine_that_dies_is_replaced_in_its_place_and_the_plan_moves_on_from_there() -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)
        await replaced(core, world, EngineId("engine-1"))
        assert sorted(world.serving) == ["engine-0", "engine-1r1", "engine-2", "engine-3"]
        assert (await move(core, world, ONES, TWOS)).applied
        assert whole(core, world, TWOS, 4)

    run(claim)


async def replaced(core: CoreEngines, world: FakeWorld, engine_id: EngineId) -> None:
    """What the fleet does when it sees that an engine is gone; one that it has given up it does not look at."""
    if engine_id not in world.serving:
        return
    world.die(engine_id)
    place = core.place_of(engine_id)
    assert place is not None
    engine = await core.replace(place, engine_id)
    if engine is not None:
        world.serving[engine.engine_id] = engine


@pytest.mark.parametrize("at", range(12))
def test_an_engine_that_dies_during_a_move_leaves_one_plan_whole(at: int) -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)
        seen: list[asyncio.Task[None]] = []

        def after(number: int) -> None:
            if number == at and world.serving:
                seen.append(asyncio.create_task(replaced(core, world, max(world.serving))))

        outcome = await move(core, world, ONES, TWOS, after=after)
        await asyncio.gather(*seen)
        assert whole(core, world, outcome.plan, 4)

    run(claim)


def test_an_engine_that_dies_once_it_was_drained_is_started_anew_on_the_way_back() -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)

        def after(number: int) -> None:
            if number == 1:
                for slot in core.slots:
                    slot.handle.alive = slot.engine_id in world.serving
                raise ResourceError("no luck")

        outcome = await move(core, world, ONES, TWOS, after=after)
        assert (outcome.applied, outcome.not_undone) == (False, ())
        assert whole(core, world, ONES, 4)

    run(claim)


def test_nothing_replaces_an_engine_whose_place_is_given_up() -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)
        place = core.place_of(EngineId("engine-3"))
        assert place is not None
        await core.perform(Action(verb=Verb.DRAIN_ENGINE, target="engine-3", tp=1))
        assert await core.replace(place, EngineId("engine-3")) is None
        assert world.names == ["engine-0", "engine-1", "engine-2", "engine-3"]

    run(claim)


def test_an_engine_that_dies_before_its_admission_is_answered_is_replaced_also_on_the_way_back() -> None:
    async def claim() -> None:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)
        admit = world._admit

        async def dies_at_once(engine: StartedEngine) -> None:
            await admit(engine)
            await replaced(core, world, engine.engine_id)

        world._admit = dies_at_once  # type: ignore[method-assign]
        await core.announce((1,), 60.0)
        await core.perform(Action(verb=Verb.DRAIN_ENGINE, target="engine-3", tp=1))
        await core.perform(Action(verb=Verb.ADMIT_ENGINE, target="engine-3", tp=1))
        assert sorted(world.serving) == ["engine-0", "engine-1", "engine-2", "engine-3r1"]

    run(claim)


def test_an_old_engine_that_does_not_come_back_is_tried_again_and_then_told() -> None:
    async def claim(broken_from: int) -> tuple[FakeWorld, TransitionOutcome]:
        world = FakeWorld(free=[4])
        core = await running(ONES, world)
        starts = 0
        start = world.start

        async def unlucky(slot: Any) -> Any:
            nonlocal starts
            starts += 1
            if 1 <= starts <= broken_from:
                raise ResourceError(f"{slot.engine_id} did not start")
            return await start(slot)

        world.start = unlucky  # type: ignore[method-assign]
        return world, await move(core, world, ONES, TWOS)

    mended, outcome = asyncio.run(claim(2))
    assert len(outcome.not_undone) == 1
    assert mended.served() == [1, 1, 1, 1]
    assert mended.failures == []

    broken, outcome = asyncio.run(claim(100))
    assert not outcome.applied
    assert broken.served() == [1, 1], "the half that was not touched"
    assert "did not start" in broken.failures[0]


OPERATIONS = st.one_of(
    st.tuples(st.just("move"), st.sampled_from([ONES, TWOS, FOUR])),
    st.tuples(st.just("fail"), st.sampled_from(["retire", "reserve", "start", "admit"])),
    st.tuples(st.just("die"), st.integers(0, 3)),
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([[4], [2, 2]]), st.lists(OPERATIONS, max_size=10))
def test_in_any_order_one_plan_is_whole(nodes: list[int], operations: list[tuple[str, Any]]) -> None:
    async def claim() -> None:
        world = FakeWorld(free=list(nodes), spread=True)
        plan, core = ONES, await running(ONES, world)
        await core.announce(plan.rollout.degrees, 0.0)
        for name, detail in operations:
            if name == "move" and detail != plan:
                outcome = await move(core, world, plan, detail)
                plan = outcome.plan
            elif name == "fail":
                world.fails = detail
            elif name == "die":
                world.fails = ""
                await replaced(core, world, sorted(world.serving)[detail % len(world.serving)])
            assert whole(core, world, plan, 4)

    run(claim)
