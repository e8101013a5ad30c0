"""Engines that come while weights travel by broadcast: they join with a publication whose group they are in, or not at all."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from libra_core.config.loading import validate_config
from libra_core.engines.weight_source import BroadcastWeights
from libra_core.errors import DeadlineError, EngineLostError
from libra_core.runtime.engine_slots import StartedEngine
from libra_core.runtime.fleet_keeper import FleetKeeper, member_of
from libra_core.runtime.router import FleetRouter
from libra_core.runtime.weights import PublicationOrder
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication
from support.core_engines import Remote

CANARY = (1, 2, 3)


class Engine:
    """Takes weights in the group that it joined last."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.rank: int | None = None
        self.version = 0

    @property
    def open_transport(self) -> Remote:
        async def open_transport(_kind: str, _host: str, _port: int, rank: int, _world_size: int) -> None:
            self.rank = rank

        return Remote(open_transport)

    @property
    def update_weights(self) -> Remote:
        async def update_weights(_source: Any, version: PolicyVersion, *_: Any) -> EnginePublication:
            assert self.rank is not None, "it would wait for ever for tensors of a group that it is not in"
            if self.fails:
                raise TimeoutError
            self.version = version
            return EnginePublication(engine_id=EngineId("e"), pause_s=0.0, load_s=0.0, resume_s=0.0)

        return Remote(update_weights)


def started(name: str, engine: Engine, tp: int = 1) -> StartedEngine:
    return StartedEngine(engine_id=EngineId(name), tp=tp, kv_tokens=10_000, handle=engine)


def keeper_of(folder: Path, *engines: StartedEngine, join_s: float = 30.0) -> FleetKeeper:
    config = validate_config(
        {
            "rollout": {"engines": [{"tp": 1, "count": 2}]},
            "elastic": {"hybrid_replicas": 1, "join_s": join_s},
            "publication": {"transport": "broadcast", "canary": False},
        }
    )
    router = FleetRouter(config, laws=None, folder=folder, resumed=None)
    keeper = FleetKeeper(config, None, lambda _: None, lambda *_: None, router)
    for engine in engines:
        keeper.fleet.add(member_of(engine))
    return keeper


async def publish(keeper: FleetKeeper, version: int) -> dict[EngineId, int]:
    """As the publisher does it; returns the group."""
    assert await keeper.begin_publication(0.1)
    group = keeper.form_group()
    await keeper.open_broadcast("127.0.0.1", 1, 1 + sum(group.values()))
    await keeper.publish(PublicationOrder(version=PolicyVersion(version), source=BroadcastWeights(tensors=())))
    keeper.end_publication()
    return group


def test_an_engine_that_comes_serves_from_the_next_publication_on(tmp_path: Path) -> None:
    async def claim() -> None:
        first, second = Engine(), Engine()
        keeper = keeper_of(tmp_path, started("a", first))
        await publish(keeper, 1)
        joining = asyncio.create_task(keeper.admit(started("b", second, tp=2), CANARY))
        await asyncio.sleep(0.05)
        assert list(keeper.fleet.members) == ["a"]
        assert not joining.done()
        assert await publish(keeper, 2) == {"a": 1, "b": 2}
        await joining
        assert list(keeper.fleet.members) == ["a", "b"]
        assert (first.version, second.version, first.rank, second.rank) == (2, 2, 1, 2)
        await keeper.admit(started("b", second, tp=2), CANARY)  # once more is the same as once

    asyncio.run(claim())


def test_one_that_comes_after_the_group_was_formed_waits_for_the_next(tmp_path: Path) -> None:
    async def claim() -> None:
        second = Engine()
        keeper = keeper_of(tmp_path, started("a", Engine()))
        await publish(keeper, 1)
        keeper.form_group()
        joining = asyncio.create_task(keeper.admit(started("b", second), CANARY))
        await asyncio.sleep(0.05)
        await keeper.publish(PublicationOrder(version=PolicyVersion(2), source=BroadcastWeights(tensors=())))
        assert not joining.done()
        await publish(keeper, 3)
        await joining
        assert second.version == 3

    asyncio.run(claim())


def test_where_none_serves_the_waiting_one_is_published_to(tmp_path: Path) -> None:
    async def claim() -> None:
        keeper = keeper_of(tmp_path, started("a", Engine()))
        await publish(keeper, 1)
        keeper.expect((1, 2), within_s=60.0)
        await keeper.retire(EngineId("a"), 1.0)
        joining = asyncio.create_task(keeper.admit(started("b", Engine(), tp=2), CANARY))
        await asyncio.sleep(0.05)
        assert keeper.waiting_for_weights
        await publish(keeper, 2)
        await joining
        assert list(keeper.fleet.members) == ["b"]

    asyncio.run(claim())


def test_without_a_publication_it_gives_up_and_is_forgotten(tmp_path: Path) -> None:
    async def claim() -> None:
        keeper = keeper_of(tmp_path, started("a", Engine()), join_s=0.1)
        await publish(keeper, 1)
        with pytest.raises(DeadlineError, match=r"b waited 0 s \(elastic.join_s\) for the next broadcast of weights"):
            await keeper.admit(started("b", Engine()), CANARY)
        assert await publish(keeper, 2) == {"a": 1}

    asyncio.run(claim())


def test_one_that_takes_no_weights_is_told_to_whoever_brings_it_and_nobody_else_is_lost(tmp_path: Path) -> None:
    async def claim() -> None:
        keeper = keeper_of(tmp_path, started("a", Engine()))
        await publish(keeper, 1)
        joining = asyncio.create_task(keeper.admit(started("b", Engine(fails=True)), CANARY))
        await asyncio.sleep(0.05)
        await publish(keeper, 2)
        with pytest.raises(EngineLostError, match="b did not load version 2"):
            await joining
        assert (list(keeper.fleet.members), keeper.failure) == (["a"], None)
        assert await publish(keeper, 3) == {"a": 1}

    asyncio.run(claim())


def test_one_that_is_withdrawn_while_it_waits_does_not_serve_later(tmp_path: Path) -> None:
    async def claim() -> None:
        keeper = keeper_of(tmp_path, started("a", Engine()))
        await publish(keeper, 1)
        joining = asyncio.create_task(keeper.admit(started("b", Engine()), CANARY))
        await asyncio.sleep(0.05)
        await keeper.retire(EngineId("b"), 1.0)
        with pytest.raises(EngineLostError, match="b was withdrawn before it had weights"):
            await joining
        assert await publish(keeper, 2) == {"a": 1}

    asyncio.run(claim())
