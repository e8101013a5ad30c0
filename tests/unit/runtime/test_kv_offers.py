"""The engine before a move is asked to hand KV over, for a bounded time, and a move never fails for want of its answer."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import RayActorError

from libra_core.config.rollout import KvTransferConfig, RolloutConfig
from libra_core.runtime.rollout.fleet import EngineMember, Fleet
from libra_core.runtime.rollout.kv_moves import HeldContext, MoveMeter, no_offer, offers_of
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.trajectory import GenerationRequest

CONFIGURED = RolloutConfig(kv_transfer=KvTransferConfig(connector="shared_folder", offer_deadline_s=0.05))
HELD = HeldContext(engine_id=EngineId("home"), tokens=4, version=PolicyVersion(7))
REQUEST = GenerationRequest(request_id="t/3", token_ids=tuple(range(9)), max_new_tokens=1, temperature=1.0, stop_token_ids=())


def ask(answer: Callable[..., Awaitable[Any]], held: HeldContext = HELD) -> Any:
    handle = SimpleNamespace(offer_kv=SimpleNamespace(remote=answer))
    members = {EngineId("home"): EngineMember(engine_id=EngineId("home"), tp=1, kv_tokens=100, handle=handle)}

    async def claim() -> Any:
        return await offers_of(CONFIGURED, cast("Fleet", SimpleNamespace(source=members.get)))(held, REQUEST)

    return asyncio.run(claim())


def test_the_source_is_asked_for_what_it_holds_and_one_token_more() -> None:
    async def answer(request_id: str, token_ids: tuple[int, ...], version: int) -> dict[str, Any]:
        return {"asked": (request_id, token_ids, version)}

    assert ask(answer) == {"asked": ("t/3", (0, 1, 2, 3, 4), 7)}


def test_a_source_that_is_gone_is_not_asked() -> None:
    async def answer(*_: Any) -> None:
        pytest.fail("nobody is there to ask")

    assert ask(answer, HeldContext(engine_id=EngineId("lost"), tokens=4, version=PolicyVersion(7))) is None


def test_a_source_that_dies_or_hangs_hands_nothing_over() -> None:
    async def dies(*_: Any) -> None:
        raise RayActorError

    async def hangs(*_: Any) -> None:
        await asyncio.sleep(60)

    assert ask(dies) is None
    assert ask(hangs) is None


def test_without_a_connector_nobody_is_asked() -> None:
    assert offers_of(RolloutConfig(), cast("Fleet", SimpleNamespace(members={}))) is no_offer


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(1e-6, 1e-2)), min_size=20, max_size=60))
def test_the_measured_cost_lies_between_the_cheapest_and_the_dearest_move(moves: list[tuple[int, float]]) -> None:
    meter = MoveMeter()
    for tokens, rate in moves:
        meter.add(2, tokens, tokens * rate)
    rates = [rate for _, rate in moves]
    assert min(rates) * 0.999 <= meter.s_per_token()[2] <= max(rates) * 1.001


def test_a_few_moves_are_no_measurement_and_late_ones_count_more() -> None:
    meter = MoveMeter()
    meter.add(1, 100, 1.0)
    assert meter.s_per_token() == {}
    for _ in range(64):
        meter.add(1, 100, 1.0)
    for _ in range(64):
        meter.add(1, 100, 3.0)
    assert meter.s_per_token()[1] > 0.02
