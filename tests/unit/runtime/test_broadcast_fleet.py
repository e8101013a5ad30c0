"""Engines that come while weights travel by broadcast: they join with a publication whose group they are in, or not at all."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from libra_core.config.loading import validate_config
from libra_core.engines.weight_source import BroadcastWeights
from libra_core.errors import CheckpointError, DeadlineError, EngineLostError, ResourceError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.rollout.fleet_manager import FleetManager
from libra_core.runtime.rollout.router import FleetRouter
from libra_core.runtime.rollout.weights import PublicationOrder
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication
from support.core_engines import Remote

CANARY = (1, 2, 3)


class Engine:
    """Takes weights in the group that it joined last."""

    def __init__(self, *, fails: Exception | None = None, alive: bool = True) -> None:
        self.fails, self.alive = fails, alive
        self.rank: int | None = None
        self.version = 0

    @property
    def ping(self) -> Remote:
        async def ping() -> None:
            if not self.alive:
                raise RayActorError

        return Remote(ping)

    @property
    def open_transport(self) -> Remote:
        async def open_transport(_kind: str, _host: str, _port: int, rank: int, _world_size: int, _timeout_s: float) -> None:
            self.rank = rank

        return Remote(open_transport)

    @property
    def update_weights(self) -> Remote:
        async def update_weights(_source: Any, version: PolicyVersion, *_: Any) -> EnginePublication:
            assert self.rank is not None, "it would wait for ever for tensors of a group that it is not in"
            if self.fails is not None:
                raise self.fails
            self.version = version
            return EnginePublication(engine_id=EngineId("e"), pause_s=0.0, load_s=0.0, resume_s=0.0)

        return Remote(update_weights)


def started(name: str, engine: Engine, tp: int = 1) -> StartedEngine:
    return StartedEngine(engine_id=EngineId(name), tp=tp, kv_tokens=10_000, handle=engine)


def manager_of(folder: Path, *engines: StartedEngine, join_s: float = 30.0) -> FleetManager:
    config = validate_config(
        {
            "rollout": {"engines": [{"tp": 1, "count": 2}]},
            "elastic": {"hybrid_replicas": 1, "join_s": join_s},
            "publication": {"transport": "broadcast", "canary": False},
        }
    )
    router = FleetRouter(config, laws=None, folder=folder, resumed=None)
    manager = FleetManager(config, None, lambda work: work.close(), lambda *_: None, router)
    manager.start_with(engines)
    return manager


def order(version: int) -> PublicationOrder:
    return PublicationOrder(version=PolicyVersion(version), source=BroadcastWeights(tensors=()))


async def publish(manager: FleetManager, version: int, *, whole: bool = True) -> dict[EngineId, int]:
    """As the publisher does it; returns the group."""
    assert await manager.begin_publication(1, 0.1)
    group = await manager.round.form(manager.members())
    await manager.round.open("127.0.0.1", 1, 1 + sum(group.values()), 5.0)
    publishing = asyncio.create_task(manager.publish(order(version)))
    await asyncio.sleep(0)
    manager.round.end(whole=whole)
    await publishing
    manager.end_publication(1)
    return group


def test_an_engine_that_comes_serves_from_the_next_publication_on(tmp_path: Path) -> None:
    async def claim() -> None:
        first, second = Engine(), Engine()
        manager = manager_of(tmp_path, started("a", first))
        await publish(manager, 1)
        joining = asyncio.create_task(manager.admit(started("b", second, tp=2), CANARY))
        await asyncio.sleep(0.05)
        assert list(manager.fleet.members) == ["a"]
        assert not joining.done()
        assert await publish(manager, 2) == {"a": 1, "b": 2}
        await joining
        assert list(manager.fleet.members) == ["a", "b"]
        assert (first.version, second.version, first.rank, second.rank) == (2, 2, 1, 2)
        await manager.admit(started("b", second, tp=2), CANARY)  # once more is the same as once

    asyncio.run(claim())


def test_one_that_comes_after_the_group_was_formed_waits_for_the_next(tmp_path: Path) -> None:
    async def claim() -> None:
        second = Engine()
        manager = manager_of(tmp_path, started("a", Engine()))
        await publish(manager, 1)
        await manager.round.form(manager.members())
        joining = asyncio.create_task(manager.admit(started("b", second), CANARY))
        await asyncio.sleep(0.05)
        await manager.publish(order(2))
        assert not joining.done()
        await publish(manager, 3)
        await joining
        assert second.version == 3

    asyncio.run(claim())


def test_where_none_serves_the_waiting_one_is_published_to(tmp_path: Path) -> None:
    async def claim() -> None:
        manager = manager_of(tmp_path, started("a", Engine()))
        await publish(manager, 1)
        manager.expect((1, 2), within_s=60.0)
        await manager.retire(EngineId("a"), 1.0)
        joining = asyncio.create_task(manager.admit(started("b", Engine(), tp=2), CANARY))
        await asyncio.sleep(0.05)
        assert manager.waiting_for_weights
        await publish(manager, 2)
        await joining
        assert list(manager.fleet.members) == ["b"]

    asyncio.run(claim())


def test_without_a_publication_it_gives_up_and_is_forgotten(tmp_path: Path) -> None:
    async def claim() -> None:
        manager = manager_of(tmp_path, started("a", Engine()), join_s=0.1)
        await publish(manager, 1)
        with pytest.raises(DeadlineError, match=r"b waited 0 s \(elastic.join_s\) for the next broadcast of weights"):
            await manager.admit(started("b", Engine()), CANARY)
        assert await publish(manager, 2) == {"a": 1}

    asyncio.run(claim())


def test_one_that_takes_no_weights_is_told_to_whoever_brings_it_and_nobody_else_is_lost(tmp_path: Path) -> None:
    async def claim() -> None:
        manager = manager_of(tmp_path, started("a", Engine()))
        await publish(manager, 1)
        joining = asyncio.create_task(manager.admit(started("b", Engine(fails=TimeoutError())), CANARY))
        await asyncio.sleep(0.05)
        await publish(manager, 2)
        with pytest.raises(EngineLostError, match="b did not load version 2"):
            await joining
        assert (list(manager.fleet.members), manager.failure) == (["a"], None)
        assert await publish(manager, 3) == {"a": 1}

    asyncio.run(claim())


def test_one_that_is_withdrawn_while_it_waits_does_not_serve_later(tmp_path: Path) -> None:
    async def claim() -> None:
        manager = manager_of(tmp_path, started("a", Engine()))
        await publish(manager, 1)
        joining = asyncio.create_task(manager.admit(started("b", Engine()), CANARY))
        await asyncio.sleep(0.05)
        await manager.retire(EngineId("b"), 1.0)
        with pytest.raises(EngineLostError, match="b was withdrawn before it had weights"):
            await joining
        assert await publish(manager, 2) == {"a": 1}

    asyncio.run(claim())


def not_staged() -> Exception:
    return RayTaskError("update_weights", "traceback", CheckpointError("b keeps version 1: connection reset by peer"))


def test_when_the_trainer_could_not_send_all_the_others_serve_on_and_take_the_repeat(tmp_path: Path) -> None:
    async def claim() -> None:
        dead, other = Engine(), Engine()
        manager = manager_of(tmp_path, started("a", dead), started("b", other))
        await publish(manager, 1)
        dead.fails, other.fails = RayActorError(), not_staged()
        await publish(manager, 2, whole=False)
        assert (list(manager.fleet.members), other.version) == (["b"], 1)
        other.fails = None
        assert await publish(manager, 2) == {"b": 1}
        assert (other.version, other.rank) == (2, 1)

    asyncio.run(claim())


def test_one_that_a_whole_broadcast_did_not_reach_is_replaced(tmp_path: Path) -> None:
    async def claim() -> None:
        manager = manager_of(tmp_path, started("a", Engine()), started("b", Engine(fails=not_staged())))
        await publish(manager, 1)
        assert list(manager.fleet.members) == ["a"]

    asyncio.run(claim())


def test_one_that_died_unnoticed_is_no_member_of_the_group(tmp_path: Path) -> None:
    async def claim() -> None:
        dead = Engine()
        manager = manager_of(tmp_path, started("a", Engine()), started("b", dead))
        await publish(manager, 1)
        dead.alive = False
        assert await publish(manager, 2) == {"a": 1}
        assert list(manager.fleet.members) == ["a"]

    asyncio.run(claim())


def test_a_group_that_one_engine_does_not_join_is_of_no_use(tmp_path: Path) -> None:
    async def claim() -> None:
        manager = manager_of(tmp_path, started("a", Engine()))
        await manager.round.form(manager.members())

        async def refuse(*_: Any) -> None:
            raise RayActorError

        manager.round.members[0].handle = type("Dead", (), {"open_transport": Remote(refuse)})()
        with pytest.raises(ResourceError, match="1 of 1 engines did not join a broadcast"):
            await manager.round.open("127.0.0.1", 1, 2, 5.0)

    asyncio.run(claim())
