"""Nobody waits for ever: whoever hangs or dies is named, given up and, where it is an engine, replaced; the run goes on."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from libra_core.config.loading import validate_config
from libra_core.engines.weight_source import FileWeights
from libra_core.errors import DeadlineError, EngineLostError, NumericsError, ResourceError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.ray_cluster import call_within
from libra_core.runtime.base.rpc import reply
from libra_core.runtime.cluster.engine_slots import quiet
from libra_core.runtime.driver import session
from libra_core.runtime.rollout import fleet_manager, weights
from libra_core.runtime.rollout.coordinator import WaitBoard
from libra_core.runtime.rollout.fleet_manager import FleetManager
from libra_core.runtime.rollout.router import FleetRouter
from libra_core.runtime.rollout.weights import PublicationOrder
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication, EngineStats
from support.actors import DIES, HANGS, FakeActor, raised_remotely

CANARY = (1, 2, 3)
SCORES = (-0.5, -0.25, -0.125)
SOON_S = 0.05
ILL = (HANGS, DIES, EngineLostError("its engine process died"))


def stats(name: str) -> EngineStats:
    return EngineStats(
        engine_id=EngineId(name),
        policy_version=PolicyVersion(0),
        running=0,
        waiting=0,
        kv_usage=0.0,
        generated_tokens=0,
        prompt_tokens=0,
        cached_prompt_tokens=0,
        busy_s=0.0,
        preemptions=0,
    )


def engine(name: str, **ill: str | Exception) -> FakeActor:
    loaded = EnginePublication(engine_id=EngineId(name), pause_s=0.0, load_s=0.0, resume_s=0.0)
    actor = FakeActor(score=SCORES, stats=stats(name), update_weights=loaded)
    actor.ill = ill
    return actor


class World:
    """A fleet of such engines, and a controller that brings `replacement` for any that is lost."""

    def __init__(self, folder: Path, engines: dict[str, FakeActor], **config: Any) -> None:
        values = {
            "rollout": {"engines": [{"tp": 1, "count": 2}], "turn_deadline_s": SOON_S, "engine_start_deadline_s": SOON_S},
            "publication": {"deadline_s": SOON_S},
        }
        self.config = validate_config(values | config)
        self.controller = FakeActor(replace_engine=lambda _lost: started("spare", engine("spare")))
        self.tasks: list[asyncio.Task[None]] = []
        router = FleetRouter(self.config, laws=None, folder=folder, resumed=None)
        self.reasons: list[str] = []
        self.manager = FleetManager(self.config, self.controller, self.spawn, self.record, router)
        self.manager.start_with([started(name, actor) for name, actor in engines.items()])

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def record(self, name: str, _lane: str, _start_s: float, _end_s: float) -> None:
        self.reasons += [name.removeprefix("lost: ")] if name.startswith("lost: ") else []

    async def all_ended(self) -> list[str]:
        """Ids of the fleet once replacements have come."""
        await asyncio.gather(*self.tasks)
        return sorted(self.manager.fleet.members)


def started(name: str, actor: FakeActor) -> StartedEngine:
    return StartedEngine(engine_id=EngineId(name), tp=1, kv_tokens=10_000, handle=actor)


def run(claim: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(claim(), 20.0))


@pytest.mark.parametrize("illness", ILL, ids=str)
@pytest.mark.parametrize(
    ("method", "what", "act"),
    [
        ("stats", "give statistics", lambda manager: manager.stats()),
        ("score", "score the canary", lambda manager: manager.canary(CANARY)),
        ("hold", "hold", lambda manager: manager.hold()),
    ],
)
def test_an_engine_that_hangs_or_dies_at_a_call_to_all_is_named_and_replaced(
    tmp_path: Path, method: str, what: str, act: Callable[[FleetManager], Any], illness: str | Exception
) -> None:
    async def claim() -> None:
        world = World(tmp_path, {"a": engine("a", **{method: illness}), "b": engine("b")})
        answer = await act(world.manager)
        assert await world.all_ended() == ["b", "spare"]
        assert world.reasons[0].startswith(f"a could not {what}: ")
        if method == "stats":
            assert [found.engine_id for found in answer] == ["b"]
        if method == "score":
            assert answer == {"b": SCORES}

    run(claim)


def test_a_mistake_in_an_engines_own_code_is_not_taken_for_its_loss(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path, {"a": engine("a", score=ValueError("not a token")), "b": engine("b")})
        with pytest.raises(ValueError, match="not a token"):
            await world.manager.canary(CANARY)
        assert await world.all_ended() == ["a", "b"]

    run(claim)


@pytest.mark.parametrize("illness", ILL, ids=str)
def test_a_newcomer_is_not_blamed_for_the_engine_that_it_is_compared_with(tmp_path: Path, illness: str | Exception) -> None:
    async def claim() -> None:
        old, other = engine("a", score=illness), engine("b")
        world = World(tmp_path, {"a": old, "b": other})
        await world.manager.publish(PublicationOrder(version=PolicyVersion(1), source=FileWeights(path="weights")))
        await world.manager.admit(started("c", engine("c")), CANARY)
        assert await world.all_ended() == ["b", "c", "spare"]
        other.answers["score"] = (0.0, 0.0, 0.0)
        with pytest.raises(NumericsError, match="d and the trainer differ"):
            await world.manager.admit(started("d", engine("d")), CANARY)

    run(claim)


def test_a_newcomer_that_hangs_at_the_canary_does_not_serve(tmp_path: Path) -> None:
    async def claim() -> None:
        world = World(tmp_path, {"a": engine("a")})
        await world.manager.publish(PublicationOrder(version=PolicyVersion(1), source=FileWeights(path="weights")))
        with pytest.raises(EngineLostError, match=r"b could not be compared .* waited 0 s for b to score the canary"):
            await world.manager.admit(started("b", engine("b", score=HANGS)), CANARY)
        assert await world.all_ended() == ["a"]

    run(claim)


@pytest.mark.parametrize("illness", [HANGS, DIES, RuntimeError("a mistake")], ids=str)
def test_a_replacement_that_never_comes_is_said_and_ends_the_hope_for_it(
    tmp_path: Path, illness: str | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_manager, "GRACE_S", 0.0)

    async def claim() -> None:
        world = World(tmp_path, {"a": engine("a")})
        world.controller.ill["replace_engine"] = illness
        world.manager.fleet.on_lost(EngineId("a"), "a died")
        assert world.manager.hopeless is None
        await world.all_ended()
        assert "a could not be replaced: " in str(world.manager.hopeless)

    run(claim)


@pytest.mark.parametrize("illness", ILL, ids=str)
def test_a_broadcast_is_formed_without_an_engine_that_gives_no_sign_of_life(
    tmp_path: Path, illness: str | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "PING_S", SOON_S)

    async def claim() -> None:
        world = World(tmp_path, {"a": engine("a", ping=illness), "b": engine("b")})
        assert await world.manager.round.form(world.manager.members()) == {"b": 1}
        assert world.reasons[0].startswith("a cannot take part: ")

    run(claim)


@pytest.mark.parametrize("illness", ILL, ids=str)
def test_an_engine_that_does_not_join_a_broadcast_is_named(
    tmp_path: Path, illness: str | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "GRACE_S", 0.0)

    async def claim() -> None:
        world = World(tmp_path, {"a": engine("a", open_transport=illness), "b": engine("b")})
        await world.manager.round.form(world.manager.members())
        with pytest.raises(ResourceError, match="1 of 2 engines did not join a broadcast: "):
            await world.manager.round.open("127.0.0.1", 1, 3, SOON_S)

    run(claim)


def test_a_reply_names_both_sides_and_keeps_what_the_actor_raised() -> None:
    async def claim() -> None:
        actor = FakeActor(ask=42)
        assert await reply("the flow", "an answer", actor.ask.remote(), 1.0) == 42
        for illness, kind, sentence in (
            (HANGS, DeadlineError, "the flow waited 0 s for an answer and got no answer"),
            (DIES, ResourceError, "the flow waited for an answer: the actor is gone"),
            (EngineLostError("a is lost"), EngineLostError, "^a is lost$"),
            (KeyError("x"), KeyError, "x"),
            (TimeoutError("of its own"), TimeoutError, "of its own"),
        ):
            actor.ill["ask"] = illness
            with pytest.raises(kind, match=sentence):
                await reply("the flow", "an answer", actor.ask.remote(), 0.02)

    run(claim)


def test_who_is_gone_has_ended_and_who_hangs_has_not() -> None:
    async def claim() -> None:
        actor = FakeActor()
        for illness, ended in (("", True), (DIES, True), (ValueError("half closed"), True), (HANGS, False)):
            actor.ill["stop"] = illness
            assert await quiet("it to stop", actor.stop.remote(), 0.02) is ended

    run(claim)


def test_a_library_call_that_hangs_is_left_behind_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libra_core.runtime.base.ray_cluster._UNDO_S", 0.05)
    free, undone = threading.Event(), threading.Event()
    with pytest.raises(DeadlineError, match="the flow waited 0 s for Ray to start, and it has not come back"):
        call_within("Ray to start", free.wait, 0.02, undo=lambda: (free.set(), undone.set()))
    assert undone.is_set()
    assert call_within("Ray to start", lambda: 7, 5.0) == 7
    with pytest.raises(ConnectionError, match="refused"):
        call_within("Ray to start", lambda: (_ for _ in ()).throw(ConnectionError("refused")), 5.0)


def test_the_thread_of_a_call_whose_children_need_it_lives_until_they_are_gone() -> None:
    over = threading.Event()
    thread = call_within("Ray to start", threading.current_thread, 5.0, until=over)
    time.sleep(0.05)
    assert thread.is_alive()
    over.set()
    thread.join(5.0)
    assert not thread.is_alive()


def test_the_longest_waits_are_told_first_and_none_that_is_over() -> None:
    board = WaitBoard()
    with board.waiting("group 1", "the scorer"), board.waiting("g000002.0.0", "the tool python"):
        with board.waiting("g000003.0.0", "a place on an engine"):
            assert board.longest(1) == ["group 1 waits 0 s for the scorer", "and 2 more wait"]
        assert board.longest(8) == ["group 1 waits 0 s for the scorer", "g000002.0.0 waits 0 s for the tool python"]
    assert board.longest(8) == []


def test_engines_that_fail_while_the_trainer_still_starts_end_the_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    died = raised_remotely(ResourceError("engine-0 did not start: no kernel for head size 16"))
    world = FakeRay({"trainer": None, "engines": died})
    monkeypatch.setattr("libra_core.runtime.base.rpc.ray", world)
    began_s = time.monotonic()
    with pytest.raises(ResourceError, match="engine-0 did not start: no kernel for head size 16"):
        session._started("the trainer", "trainer", 300.0, ("the engines", "engines"))
    assert time.monotonic() - began_s < 5.0


def test_engines_that_are_up_first_are_no_reason_to_wait_less_for_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakeRay({"trainer": None, "engines": "up"})
    monkeypatch.setattr("libra_core.runtime.base.rpc.ray", world)
    with pytest.raises(DeadlineError, match="for the trainer to start"):
        session._started("the trainer", "trainer", 1.0, ("the engines", "engines"))
    world.answers["trainer"] = "ranks"
    assert session._started("the trainer", "trainer", 1.0, ("the engines", "engines")) == "ranks"


class FakeRay:
    """`ray.wait` and `ray.get` over what has been answered; an answer of None is not there yet."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def wait(self, references: list[str], *, num_returns: int = 1, timeout: float) -> tuple[list[str], list[str]]:
        done = [reference for reference in references if self.answers[reference] is not None]
        return done[:num_returns], [reference for reference in references if reference not in done[:num_returns]]

    def get(self, reference: str, timeout: float) -> Any:
        answer = self.answers[reference]
        if answer is None:
            raise GetTimeoutError
        if isinstance(answer, Exception):
            raise answer
        return answer
