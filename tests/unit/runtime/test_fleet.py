"""A trajectory binds late, keeps its place until it ends, and an engine never promises more than its KV share."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.least_loaded import LeastLoaded
from libra_core.runtime.rollout.fleet import EngineMember, Fleet
from libra_core.runtime.rollout.kv_budget import ContextHistory, KvLedger
from libra_core.types.ids import EngineId, TrajectoryId
from support.routing import finished

WHOLE_ENGINE = 10**6
"""Tokens that no engine here has room for beside anything else."""


def fleet(
    *kv_tokens: int, fill: float = 0.5, prior: float = 100.0, queue_order: Literal["fifo", "longest_first"] = "fifo"
) -> Fleet:
    history = ContextHistory(prior_tokens=prior)
    built = Fleet(
        policy=LeastLoaded(),
        ledger=KvLedger(fill=fill, history=history),
        history=history,
        queue_order=queue_order,
        turn_deadline_s=5.0,
        refill_deadline_s=5.0,
        on_lost=lambda _member, _reason: None,
    )
    for number, tokens in enumerate(kv_tokens):
        built.add(EngineMember(engine_id=EngineId(f"e{number}"), tp=1, kv_tokens=tokens, handle=None))
    return built


def turn(number: int, *, context: int = 10, kind: str = "k", current: str | None = None) -> TurnContext:
    engine = None if current is None else EngineId(current)
    return TurnContext(
        trajectory_id=TrajectoryId(f"t{number}"),
        kind=kind,
        order=number,
        current=engine,
        context_tokens=context,
        tool_returns=(),
    )


def run(claim: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(claim())


def test_an_engine_takes_only_its_share_and_the_rest_binds_when_a_place_frees() -> None:
    async def claim() -> None:
        target = fleet(400)  # half of 400 tokens: two trajectories of the expected 100
        await target.bind(turn(0))
        await target.bind(turn(1))
        third = asyncio.create_task(target.bind(turn(2)))
        await asyncio.sleep(0)
        assert target.queued == 1
        target.release(TrajectoryId("t0"), "k", 100)
        assert (await third).engine_id == "e0"
        assert target.queued == 0

    run(claim)


def test_a_bound_trajectory_never_waits_for_its_next_turn() -> None:
    async def claim() -> None:
        target = fleet(200)
        await target.bind(turn(0))
        member = await asyncio.wait_for(target.bind(turn(0, context=150, current="e0")), 1.0)
        assert member.engine_id == "e0"

    run(claim)


def test_an_empty_engine_takes_a_trajectory_longer_than_its_share() -> None:
    async def claim() -> None:
        assert (await asyncio.wait_for(fleet(50).bind(turn(0)), 1.0)).engine_id == "e0"

    run(claim)


def test_older_groups_bind_first() -> None:
    async def claim() -> None:
        target = fleet(200)
        await target.bind(turn(9))
        young = asyncio.create_task(target.bind(turn(5)))
        await asyncio.sleep(0)
        old = asyncio.create_task(target.bind(turn(2)))
        await asyncio.sleep(0)
        target.release(TrajectoryId("t9"), "k", 100)
        await asyncio.wait_for(old, 1.0)
        assert not young.done()
        young.cancel()

    run(claim)


def test_longest_first_binds_the_kind_that_grows_longest() -> None:
    async def claim() -> None:
        target = fleet(200, queue_order="longest_first")
        await target.bind(turn(0, kind="long"))
        target.history.add("long", 300)
        target.history.add("short", 20)
        short = asyncio.create_task(target.bind(turn(1, kind="short")))
        long = asyncio.create_task(target.bind(turn(2, kind="long")))
        await asyncio.sleep(0)
        target.release(TrajectoryId("t0"), "long", 300)
        await asyncio.wait_for(long, 1.0)
        assert not short.done()
        short.cancel()

    run(claim)


def test_losing_an_engine_frees_its_places_and_a_joining_one_serves_the_queue() -> None:
    async def claim() -> None:
        target = fleet(200)
        await target.bind(turn(0))
        waiting = asyncio.create_task(target.bind(turn(1)))
        await asyncio.sleep(0)
        target.drop(EngineId("e0"))
        again = asyncio.create_task(target.bind(turn(0)))
        await asyncio.sleep(0)
        target.add(EngineMember(engine_id=EngineId("e1"), tp=1, kv_tokens=400, handle=None))
        assert {(await waiting).engine_id, (await again).engine_id} == {"e1"}

    run(claim)


def test_preemptions_lower_the_share_and_quiet_raises_it_again_up_to_the_configured_one() -> None:
    ledger = KvLedger(fill=0.7, history=ContextHistory(prior_tokens=1.0))
    engine = EngineId("e")
    ledger.add_engine(engine, 100)
    ledger.bind(TrajectoryId("t"), engine, "k", 30)
    assert ledger.has_room(engine, "k", 40)
    for preemptions in range(1, 4):
        ledger.observe(engine, preemptions)
    assert not ledger.has_room(engine, "k", 40)
    for _ in range(50):
        ledger.observe(engine, 3)
    assert ledger.has_room(engine, "k", 40)
    assert not ledger.has_room(engine, "k", 41)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_account_of_places_is_exact_over_any_sequence_of_events(data: st.DataObject) -> None:
    ledger = KvLedger(fill=0.5, history=ContextHistory(prior_tokens=50.0))
    engines = [EngineId("a"), EngineId("b")]
    for engine in engines:
        ledger.add_engine(engine, 400)
    held: dict[TrajectoryId, EngineId] = {}
    for number in range(data.draw(st.integers(0, 30))):
        engine = data.draw(st.sampled_from(engines))
        if held and data.draw(st.booleans()):
            trajectory = data.draw(st.sampled_from(sorted(held)))
            del held[trajectory]
            ledger.release(trajectory, "k", data.draw(st.integers(1, 200)))
        elif ledger.has_room(engine, "k", 10):
            held[TrajectoryId(f"t{number}")] = engine
            ledger.bind(TrajectoryId(f"t{number}"), engine, "k", 10)
    for trajectory, engine in held.items():
        assert ledger.engine_of(trajectory) == engine
    for engine in engines:
        assert ledger.has_room(engine, "k", WHOLE_ENGINE) == (engine not in held.values())


class Directed:
    """Sends every turn where it is told, and keeps what it was offered and taught."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.offered: list[EngineLoad] = []
        self.learnt: list[TrajectoryId] = []
        self.forgotten: list[TrajectoryId] = []

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        self.offered = list(engines)
        names = [engine.engine_id for engine in engines]
        return EngineId(self.target) if self.target in names else names[0]

    def learn(self, finished: FinishedTrajectory) -> None:
        self.learnt.append(finished.trajectory_id)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self.forgotten.append(trajectory_id)


def mixed_fleet(policy: Directed, moved: list[TurnContext]) -> Fleet:
    """Two engines of TP 1 and two of TP 4, with room for nine trajectories each."""
    built = fleet(fill=1.0)
    built.policy, built.degrees, built.max_num_seqs, built.on_move = policy, (1, 4), 7, moved.append
    for name, tp in (("a", 1), ("b", 1), ("c", 4), ("d", 4)):
        built.add(EngineMember(engine_id=EngineId(name), tp=tp, kv_tokens=900, handle=None))
    return built


def empty_engines(target: Fleet) -> list[str]:
    """Only an engine that holds nothing takes whatever comes."""
    return [name for name in target.members if target.ledger.has_room(name, "k", WHOLE_ENGINE)]


def test_engines_of_one_degree_form_a_bucket() -> None:
    async def claim() -> None:
        policy = Directed("a")
        target = mixed_fleet(policy, [])
        await target.bind(turn(0))
        await target.bind(turn(1))
        assert [(load.bucket, load.capacity, load.in_flight) for load in policy.offered] == [
            (0, 7, 1),
            (0, 7, 0),
            (1, 7, 0),
            (1, 7, 0),
        ]
        assert target.ledger.has_room(EngineId("a"), "k", 700)
        assert not target.ledger.has_room(EngineId("a"), "k", 701)
        assert empty_engines(target) == ["b", "c", "d"]

    run(claim)


def test_a_move_frees_the_place_it_leaves_and_is_told() -> None:
    async def claim() -> None:
        moved: list[TurnContext] = []
        policy = Directed("a")
        target = mixed_fleet(policy, moved)
        await target.bind(turn(0))
        policy.target = "c"
        member = await target.bind(turn(0, context=150, current="a"))
        assert (member.engine_id, [one.context_tokens for one in moved]) == ("c", [150])
        assert {name: one.bound for name, one in target.members.items()} == {"a": 0, "b": 0, "c": 1, "d": 0}
        assert target.ledger.has_room(EngineId("c"), "k", 750)
        assert not target.ledger.has_room(EngineId("c"), "k", 751)
        assert empty_engines(target) == ["a", "b", "d"]

    run(claim)


def test_a_move_is_foreseen_only_for_a_trajectory_with_a_living_home() -> None:
    async def claim() -> None:
        policy = Directed("a")
        target = mixed_fleet(policy, [])
        assert target.foresee(turn(0, current="a")) is None
        await target.bind(turn(0))
        assert target.foresee(turn(0, current="a")) is None
        policy.target = "d"
        foreseen = target.foresee(turn(0, current="a"))
        assert foreseen is not None
        assert foreseen.engine_id == "d"
        assert target.members[EngineId("a")].bound == 1, "foreseeing binds nothing"
        target.drop(EngineId("a"))
        assert target.foresee(turn(0, current="a")) is None

    run(claim)


def test_of_equal_engines_the_one_that_computed_ahead_is_taken() -> None:
    async def claim() -> None:
        policy = Directed("a")
        target = mixed_fleet(policy, [])
        for number in range(3):
            await target.bind(turn(number))
        policy.target = "c"
        prepared = replace(turn(0, current="a"), prepared=EngineId("d"))
        assert (await target.bind(prepared)).engine_id == "d"
        other_degree = replace(turn(1, current="a"), prepared=EngineId("b"))
        assert (await target.bind(other_degree)).engine_id == "c"
        policy.target = "a"
        stays = replace(turn(2, current="a"), prepared=EngineId("b"))
        assert (await target.bind(stays)).engine_id == "a"

    run(claim)


def test_what_ended_is_learnt_and_what_failed_is_forgotten() -> None:
    async def claim() -> None:
        policy = Directed("a")
        target = mixed_fleet(policy, [])
        await target.bind(turn(0))
        await target.bind(turn(1))
        target.release(TrajectoryId("t0"), "k", 100, finished([5], name="t0"))
        target.release(TrajectoryId("t1"), "k", 100)
        assert (policy.learnt, policy.forgotten) == (["t0"], ["t1"])

    run(claim)


def test_a_withdrawn_engine_gets_no_more_turns_and_its_trajectories_bind_elsewhere() -> None:
    async def claim() -> None:
        target = fleet(800, 800)
        home = (await target.bind(turn(0))).engine_id
        withdrawn = target.withdraw(home)
        assert withdrawn is not None
        assert withdrawn.bound == 0
        assert target.withdraw(home) is None
        other = await target.bind(turn(0, current=home))
        assert other.engine_id != home
        assert (await target.bind(turn(1))).engine_id == other.engine_id
        target.add(withdrawn)
        assert (await target.bind(turn(2))).engine_id == home, "it serves again, and is empty"

    run(claim)


def test_the_last_engine_withdrawn_leaves_trajectories_waiting_for_one_that_joins() -> None:
    async def claim() -> None:
        target = fleet(800)
        home = await target.bind(turn(0))
        target.withdraw(home.engine_id)
        waiting = asyncio.create_task(target.bind(turn(0, current=home.engine_id)))
        await asyncio.sleep(0)
        assert target.queued == 1
        target.add(EngineMember(engine_id=EngineId("e7"), tp=1, kv_tokens=800, handle=None))
        assert (await waiting).engine_id == "e7"

    run(claim)
