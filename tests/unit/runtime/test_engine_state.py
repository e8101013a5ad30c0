"""The life of engines as the rollout sees it: the pure machine, and the fleet manager that performs its effects."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from libra_core.config.loading import validate_config
from libra_core.engines.weight_source import FileWeights
from libra_core.errors import DeadlineError, EngineLostError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.background import Changes
from libra_core.runtime.rollout.engine_state import (
    Answer,
    Drained,
    Effect,
    Engines,
    EngineState,
    Event,
    Failed,
    Forget,
    GivenUp,
    Loaded,
    Offered,
    PublicationBegan,
    PublicationEnded,
    Replace,
    ReplacementEnded,
    Serve,
    Withdraw,
    Withdrawn,
)
from libra_core.runtime.rollout.fleet_manager import FleetManager
from libra_core.runtime.rollout.router import FleetRouter
from libra_core.runtime.rollout.weights import PublicationOrder
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication
from support.core_engines import Remote

NAMES = [EngineId(name) for name in ("a", "b", "c")]
names = st.sampled_from(NAMES)
tokens = st.integers(0, 2)


class EngineLives(RuleBasedStateMachine):
    """Any order of events, late and repeated ones too."""

    def __init__(self) -> None:
        super().__init__()
        self.engines = Engines()
        self.bindable: set[EngineId] = set()
        """By the effects alone."""
        self.handing_over: set[EngineId] = set()
        self.loaded: dict[EngineId, int | None] = {}
        self.asked: dict[EngineId, int] = {}
        """Engines somebody waits for, and answers that came."""
        self.replacing: set[EngineId] = set()

    def apply(self, event: Event) -> tuple[Effect, ...]:
        self.engines, effects = self.engines.after(event)
        for effect in effects:
            match effect:
                case Serve(engine_id=name):
                    assert name in self.loaded, "it serves with weights"
                    assert name not in self.bindable
                    self.bindable.add(name)
                case Withdraw(engine_id=name):
                    assert name in self.bindable
                    assert not self.engines.publications, "no engine leaves while weights are published"
                    self.bindable.discard(name)
                    self.handing_over.add(name)
                case Forget(engine_id=name):
                    self.bindable.discard(name)
                    self.handing_over.discard(name)
                case Replace(engine_id=name):
                    assert name not in self.replacing, "each loss is replaced once"
                    self.replacing.add(name)
                case Answer(engine_id=name):
                    self.asked.pop(name, None)
        return effects

    @rule(name=names, awaited=st.booleans())
    def offer(self, name: EngineId, awaited: bool) -> None:
        before = self.engines.state(name)
        self.apply(Offered(engine_id=name, awaited=awaited))
        if awaited and before is not EngineState.SERVING:
            assert self.engines.state(name) is EngineState.WAITING_FOR_WEIGHTS
            self.asked[name] = 0
            self.replacing.discard(name)
        if not awaited and before is EngineState.STOPPED:
            assert self.engines.state(name) is EngineState.STOPPED, "a replacement that was withdrawn comes too late"

    @rule(name=names, version=st.one_of(st.none(), st.integers(0, 9)))
    def load(self, name: EngineId, version: int | None) -> None:
        self.loaded[name] = version
        before = self.engines.state(name)
        self.apply(Loaded(engine_id=name, version=None if version is None else PolicyVersion(version)))
        if before in (EngineState.WAITING_FOR_WEIGHTS, EngineState.SERVING):
            assert self.engines.engines[name].version == version

    @rule(name=names)
    def fail(self, name: EngineId) -> None:
        served = self.engines.state(name) is EngineState.SERVING
        effects = self.apply(Failed(engine_id=name, reason=f"{name} died"))
        assert not served or Replace(engine_id=name, reason=f"{name} died") in effects

    @rule(name=names)
    def withdraw(self, name: EngineId) -> None:
        publishing = bool(self.engines.publications)
        before = self.engines
        self.apply(Withdrawn(engine_id=name))
        assert not publishing or self.engines == before

    @rule(name=names)
    def give_up(self, name: EngineId) -> None:
        self.apply(GivenUp(engine_id=name))
        self.asked.pop(name, None)

    @rule(name=names)
    def drain(self, name: EngineId) -> None:
        self.apply(Drained(engine_id=name))

    @rule(name=names)
    def end_replacement(self, name: EngineId) -> None:
        self.apply(ReplacementEnded(engine_id=name))
        self.replacing.discard(name)

    @rule(token=tokens)
    def begin(self, token: int) -> None:
        self.apply(PublicationBegan(token=token))

    @rule(token=tokens)
    def end(self, token: int) -> None:
        self.apply(PublicationEnded(token=token))
        assert token not in self.engines.publications

    @invariant()
    def effects_and_states_agree(self) -> None:
        assert self.bindable == set(self.engines.that_are(EngineState.SERVING))
        assert self.handing_over == set(self.engines.that_are(EngineState.DRAINING))
        assert self.replacing >= set(self.engines.that_are(EngineState.LOST))

    @invariant()
    def who_waits_for_an_engine_is_answered_before_it_is_out_of_service(self) -> None:
        for name in self.asked:
            assert self.engines.state(name) is EngineState.WAITING_FOR_WEIGHTS


TestEngineLives = EngineLives.TestCase
TestEngineLives.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


class Engine:
    """An engine's actor that may refuse weights, and be slow at them."""

    def __init__(self, name: str) -> None:
        self.name, self.version, self.refuses = name, -1, False
        self.loading = asyncio.Event()
        self.loading.set()

    def __getattr__(self, name: str) -> Remote:
        return Remote(getattr(type(self), f"_{name}").__get__(self))

    async def _update_weights(self, _source: Any, version: PolicyVersion, *_: Any) -> EnginePublication:
        await self.loading.wait()
        if self.refuses:
            raise TimeoutError
        self.version = version
        return EnginePublication(engine_id=EngineId(self.name), pause_s=0.0, load_s=0.0, resume_s=0.0)

    async def _abort_all(self) -> None:
        """Nothing runs."""


class Fleet:
    """The fleet manager over engines that obey the test, and a controller that brings each replacement at once."""

    def __init__(self, folder: Path) -> None:
        values: dict[str, Any] = {
            "rollout": {"engines": [{"tp": 1, "count": 2}]},
            "publication": {"canary": False},
            "elastic": {"join_s": 1.0},
        }
        config = validate_config(values)
        self.engines: dict[EngineId, Engine] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.replaced: list[EngineId] = []
        router = FleetRouter(config, laws=None, folder=folder, resumed=None)
        self.manager = FleetManager(config, self, self.spawn, lambda *_: None, router)
        self.manager.start_with([self.started("e0"), self.started("e1")])
        self.version = 0

    @property
    def replace_engine(self) -> Remote:
        async def bring(lost: EngineId) -> StartedEngine:
            self.replaced.append(lost)
            return self.started(f"{lost}r")

        return Remote(bring)

    def started(self, name: str) -> StartedEngine:
        engine = self.engines[EngineId(name)] = Engine(name)
        return StartedEngine(engine_id=EngineId(name), tp=1, kv_tokens=1000, handle=engine)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        return task

    def serving(self) -> list[EngineId]:
        return sorted(self.manager.fleet.members)

    async def publish(self) -> None:
        self.version += 1
        assert await self.manager.begin_publication(self.version, 1.0)
        order = PublicationOrder(version=PolicyVersion(self.version), source=FileWeights(path="weights"))
        await self.manager.publish(order)
        self.manager.end_publication(self.version)

    async def ended(self) -> None:
        while self.tasks:
            done, _ = await asyncio.wait(self.tasks, timeout=5.0)
            assert done, "work in the background ends"
            for task in done:
                task.result()
            self.tasks -= done


acts = st.lists(st.sampled_from(["publish", "kill", "refuse", "retire", "call back", "slow publication"]), min_size=1, max_size=7)


@given(acts=acts, data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_to_engines_those_that_serve_have_the_newest_weights_and_each_loss_is_replaced_once(
    acts: list[str], data: st.DataObject, tmp_path: Path
) -> None:
    async def claim() -> None:
        fleet = Fleet(tmp_path)
        retired: list[EngineId] = []
        losses = 0
        for act in acts:
            serving = fleet.serving()
            name = data.draw(st.sampled_from(serving)) if serving else None
            if act == "publish":
                await fleet.publish()
            elif act == "slow publication" and name is not None:
                fleet.engines[name].loading.clear()
                publishing = asyncio.create_task(fleet.publish())
                await asyncio.sleep(0)
                leaving = asyncio.create_task(fleet.manager.retire(name, 5.0))
                await asyncio.sleep(0)
                assert name in fleet.manager.fleet.members, "it does not leave while it loads"
                fleet.engines[name].loading.set()
                await publishing
                await leaving
                retired.append(name)
            elif act == "kill" and name is not None:
                fleet.manager.fleet.on_lost(name, f"{name} died")
                fleet.manager.fleet.on_lost(name, f"{name} died")  # by two of its requests
                losses += 1
            elif act == "refuse" and name is not None:
                fleet.engines[name].refuses = True
                await fleet.publish()
                losses += 1
            elif act == "retire" and name is not None and len(serving) > 1:
                await fleet.manager.retire(name, 5.0)
                retired.append(name)
            elif act == "call back" and retired:
                await fleet.manager.admit(fleet.started(retired.pop()), ())
            await fleet.ended()
            assert len(fleet.replaced) == losses
            assert len(fleet.serving()) + len(retired) == 2
            if fleet.version:
                assert {fleet.engines[name].version for name in fleet.serving()} <= {fleet.version}

    asyncio.run(claim())


def test_who_waits_for_a_change_is_woken_by_it_and_not_by_the_clock() -> None:
    async def claim() -> None:
        changes, held = Changes(), []
        waiting = asyncio.create_task(changes.until(lambda: bool(held), 60.0))
        await asyncio.sleep(0)
        changes.ring()  # of something else
        await asyncio.sleep(0)
        assert not waiting.done()
        held.append(1)
        changes.ring()
        assert await asyncio.wait_for(waiting, 5.0)
        assert not await changes.until(lambda: False, 0.01)
        assert await changes.until(lambda: True, 0.0)

    asyncio.run(claim())


def test_an_engine_that_is_called_back_before_it_has_drained_serves_again(tmp_path: Path) -> None:
    async def claim() -> None:
        fleet = Fleet(tmp_path)
        fleet.manager.fleet.members[EngineId("e0")].running = 1
        leaving = asyncio.create_task(fleet.manager.retire(EngineId("e0"), 0.2))
        await asyncio.sleep(0.01)
        await fleet.manager.admit(fleet.started("e0"), ())
        with pytest.raises(DeadlineError, match="still has 1 requests"):
            await leaving
        assert fleet.serving() == ["e0", "e1"]

    asyncio.run(claim())


def test_an_engine_that_refuses_its_first_weights_is_told_to_who_waits_and_not_replaced(tmp_path: Path) -> None:
    async def claim() -> None:
        fleet = Fleet(tmp_path)
        await fleet.publish()
        await fleet.manager.retire(EngineId("e0"), 1.0)
        back = fleet.started("e0")
        fleet.engines[EngineId("e0")].refuses = True
        with pytest.raises(EngineLostError, match="did not load version 1"):
            await fleet.manager.admit(back, ())
        assert (fleet.replaced, fleet.serving()) == ([], ["e1"])

    asyncio.run(claim())
