"""While engines are replaced on purpose, turns and publications wait for them, and nobody is served from a half-known fleet."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from libra_core.config.loading import validate_config
from libra_core.engines.weight_source import FileWeights
from libra_core.errors import DeadlineError, EngineLostError, NumericsError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.rollout.fleet_manager import FleetManager
from libra_core.runtime.rollout.kv_moves import HeldContext, KvOffers
from libra_core.runtime.rollout.router import FleetRouter
from libra_core.runtime.rollout.weights import PublicationOrder
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication
from libra_core.types.trajectory import GenerationRequest
from support.core_engines import Remote
from support.routing import OK, finished
from tests.unit.runtime.test_fleet import turn

CANARY = (1, 2, 3)
ORDER = PublicationOrder(version=PolicyVersion(1), source=FileWeights(path="weights"))
HELD = HeldContext(engine_id=EngineId("a"), tokens=4, version=PolicyVersion(0))
REQUEST = GenerationRequest(request_id="t/1", token_ids=tuple(range(9)), max_new_tokens=1, temperature=1.0, stop_token_ids=())


@dataclass
class Engine:
    """An engine's actor."""

    scores: tuple[float, ...] = (-0.5, -0.25)
    version: int = 0
    answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Of an offer."""

    def __getattr__(self, name: str) -> Remote:
        return Remote(getattr(type(self), f"_{name}").__get__(self))

    async def _update_weights(self, _source: Any, version: PolicyVersion, *_: Any) -> EnginePublication:
        self.version = version
        return EnginePublication(engine_id=EngineId("e"), pause_s=0.0, load_s=0.0, resume_s=0.0)

    async def _score(self, _tokens: tuple[int, ...]) -> tuple[float, ...]:
        return self.scores

    async def _abort_all(self) -> None:
        """Nothing runs."""

    async def _offer_kv(self, *_: Any) -> dict[str, int]:
        await self.answer.wait()
        return {"version": 0}


class Controller:
    """Brings the replacement that the test puts in."""

    def __init__(self) -> None:
        self.replacement: asyncio.Future[StartedEngine | None] = asyncio.get_running_loop().create_future()

    @property
    def replace_engine(self) -> Remote:
        async def wait(_engine_id: EngineId) -> StartedEngine | None:
            return await self.replacement

        return Remote(wait)


class World:
    def __init__(
        self, folder: Path, *engines: StartedEngine, deadline_s: float = 0.05, publication_s: float = 60.0, **routing: Any
    ) -> None:
        values = {
            "rollout": {"engines": [{"tp": 1, "count": 2}], "engine_start_deadline_s": 0.05},
            "replanning": {"repartition": True},
            "routing": routing or {"policy": "cmlfq"},
            "publication": {"deadline_s": publication_s},
        }
        config = validate_config(values)
        self.controller, self.tasks = Controller(), []
        self.router = FleetRouter(config, laws=None, folder=folder, resumed=None)
        self.manager = FleetManager(config, self.controller, self.spawn, lambda *_: None, self.router)
        self.manager.start_with(engines)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))


def started(name: str, tp: int = 1, handle: Engine | None = None) -> StartedEngine:
    return StartedEngine(engine_id=EngineId(name), tp=tp, kv_tokens=10_000, handle=handle or Engine())


def run(claim: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(claim())  # type: ignore[arg-type]


def test_a_turn_waits_for_engines_that_are_expected_and_gives_up_when_none_are(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path)
        world.manager.expect((1, 2), within_s=60.0)
        waiting = asyncio.create_task(world.manager.fleet.bind(turn(0)))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "four times the time that an engine may take to be replaced"
        await world.manager.admit(started("b", 2), CANARY)
        assert (await waiting).engine_id == "b"

        await world.manager.retire(EngineId("b"), 1.0)
        world.manager.expect((2,), within_s=0.0)
        with pytest.raises(EngineLostError, match="waited 0 s for a replacement engine; no engine of the fleet is alive"):
            await asyncio.wait_for(world.manager.fleet.bind(turn(1)), 5.0)

    run(claim)


def test_buckets_follow_the_engines_that_serve_or_will(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path, started("a"), policy="cmlfq", limits_tokens=[])
        fleet = world.manager.fleet
        assert fleet.degrees == world.router.degrees == (1,)
        world.manager.expect((1, 2), within_s=60.0)
        assert fleet.degrees == world.router.degrees == (1, 2)
        for number in range(80):
            world.router.learn(finished([5 + number], [OK], name=f"f{number}"))
        await asyncio.sleep(0.01)
        await world.manager.admit(started("b", 2), CANARY)
        await fleet.bind(turn(0))
        world.manager.expect((2,), within_s=0.0)
        assert fleet.degrees == (1, 2), "an engine of tp 1 still serves"
        await world.manager.retire(EngineId("a"), 1.0)
        world.manager.expect((2,), within_s=0.0)
        assert fleet.degrees == world.router.degrees == (2,)
        assert (await fleet.bind(turn(1))).engine_id == "b"
        world.router.note_end(finished([5], [OK], name="late"), 1, 100)  # where it ended is no bucket any more, and no fault

    run(claim)


def test_a_publication_waits_for_an_engine_and_engines_wait_for_its_end(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path, started("a"))
        manager = world.manager
        manager.expect((1, 2), within_s=60.0)
        assert await manager.begin_publication(1, 0.0)
        leaving = asyncio.create_task(manager.retire(EngineId("a"), 30.0))
        await asyncio.sleep(0.1)
        assert [result.engine_id for result in await manager.publish(ORDER)] == ["e"], "it is still there"
        assert len(await manager.canary(CANARY)) == 1
        assert not leaving.done()
        manager.end_publication(1)
        await leaving
        assert not manager.fleet.members
        assert not await manager.begin_publication(1, 0.1), "none serves yet"
        await manager.admit(started("b", 2), CANARY)
        assert await manager.begin_publication(1, 0.1)

    run(claim)


def test_without_any_engine_to_come_a_publication_begins_and_fails_as_ever(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path)
        assert await world.manager.begin_publication(1, 0.0)
        assert await world.manager.publish(ORDER) == []

    run(claim)


def test_a_publication_that_does_not_end_keeps_the_engine_and_says_so(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path, started("a"), publication_s=0.05)
        await world.manager.begin_publication(1, 0.0)
        with pytest.raises(DeadlineError, match="a waited 0 s for the publication in work, and serves on"):
            await world.manager.retire(EngineId("a"), 0.1)
        assert list(world.manager.fleet.members) == ["a"]

    run(claim)


def test_an_engine_that_serves_alone_is_compared_with_those_before_it(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path, started("a"))
        manager = world.manager
        manager.expect((1, 2), within_s=60.0)
        await manager.publish(ORDER)
        await manager.canary(CANARY)
        await manager.retire(EngineId("a"), 1.0)
        with pytest.raises(NumericsError, match="b and the trainer differ by"):
            await manager.admit(started("b", 2, Engine(scores=(-0.5, -0.3))), CANARY)
        assert not manager.fleet.members
        right = Engine()
        await manager.admit(started("c", 2, right), CANARY)
        assert (right.version, list(manager.fleet.members)) == (1, ["c"])

    run(claim)


def test_a_replacement_that_comes_after_its_place_was_given_up_does_not_serve(tmp_path: Path) -> None:
    async def claim(late: StartedEngine | None) -> None:
        world = World(tmp_path, started("a"), started("b"))
        world.manager.fleet.on_lost(EngineId("a"), "a died")
        await asyncio.sleep(0)
        await world.manager.retire(EngineId("ar1"), 1.0)
        world.controller.replacement.set_result(late)
        await asyncio.gather(*world.tasks)
        assert list(world.manager.fleet.members) == ["b"]
        assert world.manager.failure is None

    run(lambda: claim(started("ar1")))
    run(lambda: claim(None))


def test_an_engine_that_leaves_hands_its_kv_over_first(tmp_path: Path) -> None:
    async def claim() -> None:
        source = Engine()
        world = World(tmp_path, started("a", handle=source), started("b"))
        fleet = world.manager.fleet
        fleet.members[EngineId("a")].running = 1
        leaving = asyncio.create_task(world.manager.retire(EngineId("a"), 30.0))
        await asyncio.sleep(0.01)
        offered = asyncio.create_task(KvOffers(fleet, 10.0)(HELD, REQUEST))
        await asyncio.sleep(0.01)
        fleet.leaving[EngineId("a")].running -= 1  # its last request has returned, and goes on on b
        await asyncio.sleep(0.2)
        assert not leaving.done()
        source.answer.set()
        assert await offered == {"version": 0}
        await leaving
        assert await KvOffers(fleet, 10.0)(HELD, REQUEST) is None, "it has left"

    run(claim)


def test_an_old_failure_is_no_reason_to_give_up_while_an_engine_is_being_brought(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path, started("a"))
        manager = world.manager
        manager.failure = "b could not be replaced"
        assert manager.hopeless == "b could not be replaced"
        manager.fleet.on_lost(EngineId("a"), "a died")
        assert manager.hopeless is None
        world.controller.replacement.set_result(started("ar1"))
        await asyncio.gather(*world.tasks)
        assert list(manager.fleet.members) == ["ar1"]

    run(claim)


def test_an_engine_that_hangs_does_not_keep_the_fleet_waiting(tmp_path: Path) -> None:
    class Hung(Engine):
        async def _abort_all(self) -> None:
            await asyncio.sleep(60)

    async def claim() -> None:
        world = World(tmp_path, started("a", handle=Hung()), started("b"))
        world.manager.fleet.members[EngineId("a")].running = 1
        with pytest.raises(DeadlineError, match="a still has 1 requests 0 s after it was withdrawn"):
            await asyncio.wait_for(world.manager.retire(EngineId("a"), 0.2), 10.0)
        assert not world.manager.fleet.leaving

    run(claim)


def test_a_publication_that_ends_twice_or_never_began_holds_nothing(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path, started("a"))
        world.manager.end_publication(7)
        assert await world.manager.begin_publication(8, 0.0)
        assert await world.manager.begin_publication(9, 0.0)
        world.manager.end_publication(8)
        world.manager.end_publication(8)
        leaving = asyncio.create_task(world.manager.retire(EngineId("a"), 5.0))
        await asyncio.sleep(0.15)
        assert not leaving.done(), "the second has not ended"
        world.manager.end_publication(9)
        await leaving

    run(claim)
