"""Engines of a hybrid worker rest while their devices train, and where resting fails the worker goes on without it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from libra_core.config import LibraConfig
from libra_core.errors import EngineLostError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.placement import Whereabouts, borrower_environment, one_of, placement_faults
from libra_core.runtime.cluster.engine_slots import EngineSlot
from libra_core.runtime.cluster.hybrid_worker import HybridWorker, WorkerSetting
from libra_core.runtime.cluster.worker_engines import WorkerEngines
from libra_core.types.ids import EngineId
from support.core_engines import Remote
from support.hybrid_workers import CONFIG

TWO_ENGINES = CONFIG.model_copy(
    update={"training": CONFIG.training.model_copy(update={"layout": CONFIG.training.layout.model_copy(update={"tp": 2})})}
)


class FakeStarter:
    """Counts what it does; engines named in `restless` do not fall asleep, those in `dead` do not wake."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.restless: set[str] = set()
        self.dead: set[str] = set()
        self.rests: bool | None = None

    def open(self, engine_id: EngineId, tp: int, placement: Any, bundle: int = 0, *, rests: bool = False) -> EngineSlot:
        self.rests = rests
        return EngineSlot(tp=tp, placement=placement, bundle=bundle, engine_id=engine_id, handle=object(), rests=rests)

    async def start(self, slot: EngineSlot) -> StartedEngine:
        self.done.append(f"start {slot.engine_id}")
        return StartedEngine(engine_id=slot.engine_id, tp=slot.tp, kv_tokens=1024, handle=slot.handle)

    async def stop(self, slot: EngineSlot) -> None:
        self.done.append(f"stop {slot.engine_id}")

    async def sleep(self, slot: EngineSlot) -> Whereabouts | None:
        self.done.append(f"sleep {slot.engine_id}")
        gone = slot.engine_id in self.restless
        return None if gone else Whereabouts(node="n", devices=(f"GPU-{slot.bundle}",), slots=1.0)

    async def wake(self, slot: EngineSlot) -> bool:
        self.done.append(f"wake {slot.engine_id}")
        return slot.engine_id not in self.dead


def engines_of(config: LibraConfig = TWO_ENGINES) -> tuple[WorkerEngines, FakeStarter]:
    starter = FakeStarter()
    return WorkerEngines("hybrid-0", None, config, starter), starter  # type: ignore[arg-type]


def run(claim: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(claim())


def ids(slots: list[EngineSlot]) -> list[str]:
    return [slot.engine_id for slot in slots]


def test_engines_that_rest_wake_up_as_the_same_engines() -> None:
    async def claim() -> None:
        engines, starter = engines_of()
        await engines.start()
        before = list(engines.started)
        assert starter.rests
        assert ids(engines.awake) == ["hybrid-0.0", "hybrid-0.1"]
        await engines.rest()
        await engines.rest()
        assert (engines.awake, engines.started) == ([], [])
        assert ids(engines.held) == ["hybrid-0.0", "hybrid-0.1"]
        assert [place.devices for place in engines.lent] == [("GPU-0",), ("GPU-1",)]
        await engines.start()
        await engines.start()
        assert engines.started == before
        assert engines.lent == []
        assert starter.done[2:] == [f"{verb} hybrid-0.{n}" for verb in ("sleep", "wake") for n in (0, 1)]

    run(claim)


def test_where_one_engine_does_not_fall_asleep_all_are_stopped() -> None:
    async def claim() -> None:
        engines, starter = engines_of()
        await engines.start()
        starter.restless = {"hybrid-0.1"}
        await engines.rest()
        assert (engines.held, engines.started, engines.lent) == ([], [], [])
        assert starter.done[-2:] == ["stop hybrid-0.0", "stop hybrid-0.1"]
        await engines.start()
        assert ids(engines.awake) == ["hybrid-0.0e1", "hybrid-0.1e1"]

    run(claim)


def test_where_one_engine_does_not_wake_all_are_started_anew_under_new_names() -> None:
    async def claim() -> None:
        engines, starter = engines_of()
        await engines.start()
        await engines.rest()
        starter.dead = {"hybrid-0.0"}
        await engines.start()
        assert ids(engines.awake) == [engine.engine_id for engine in engines.started] == ["hybrid-0.0e1", "hybrid-0.1e1"]
        assert "stop hybrid-0.1" in starter.done, "the other one holds devices"

    run(claim)


def test_an_engine_that_is_being_replaced_is_not_put_to_sleep() -> None:
    async def claim() -> None:
        engines, starter = engines_of()
        await engines.start()
        engines.held[0].handle = object()  # a replacement that has not come up
        await engines.rest()
        assert not any(done.startswith("sleep") for done in starter.done)
        assert engines.held == []

    run(claim)


def test_a_worker_of_which_only_one_engine_was_admitted_takes_both_back() -> None:
    class Coordinator:
        def __init__(self) -> None:
            self.serving: set[str] = set()

        @property
        def admit_engine(self) -> Remote:
            async def admit(engine: StartedEngine) -> None:
                if engine.engine_id == "hybrid-0.1":
                    raise EngineLostError("it took no weights")
                self.serving.add(engine.engine_id)

            return Remote(admit)

        @property
        def retire_engine(self) -> Remote:
            async def retire(engine_id: EngineId, _deadline_s: float) -> None:
                self.serving.discard(engine_id)

            return Remote(retire)

    async def claim() -> None:
        setting = WorkerSetting(config=TWO_ENGINES, model_folder="nowhere", loopback=True, starter=FakeStarter())
        worker = HybridWorker(0, None, setting)  # type: ignore[arg-type]
        worker.coordinator = coordinator = Coordinator()
        await worker.start_engine()
        with pytest.raises(EngineLostError):
            await worker.admit()
        assert coordinator.serving == {"hybrid-0.0"}
        await worker.drain()
        assert coordinator.serving == set()

    run(claim)


def test_a_replacement_that_comes_too_late_changes_nothing() -> None:
    async def claim() -> None:
        engines, starter = engines_of()
        await engines.start()
        slot = engines.held[0]
        late = await starter.start(slot)
        await engines.rest()
        engines.note_replaced(slot, late)
        assert engines.started == []
        await engines.start()
        engines.note_replaced(slot, late)
        assert engines.started[0] is late

    run(claim)


@pytest.mark.parametrize(
    "values",
    [{"elastic": {"idle_engine": "stop"}}, {"rollout": {"kv_transfer": {"connector": "NixlConnector"}}}],
    ids=["asked to stop", "connector of others"],
)
def test_engines_are_stopped_where_that_is_asked_or_a_connector_holds_their_memory(values: dict[str, Any]) -> None:
    async def claim() -> None:
        config = TWO_ENGINES
        for section, update in values.items():
            part = getattr(config, section)
            changed = {
                name: getattr(part, name).model_copy(update=value) if isinstance(value, dict) else value
                for name, value in update.items()
            }
            config = config.model_copy(update={section: part.model_copy(update=changed)})
        engines, starter = engines_of(config)
        await engines.start()
        assert starter.rests is False
        await engines.rest()
        assert engines.held == []

    run(claim)


def test_a_replica_uses_the_devices_that_its_sleeping_engine_lends_and_no_other() -> None:
    lender, slots = Whereabouts(node="n", devices=("2", "5"), slots=2.0), Whereabouts(node="n", devices=(), slots=2.0)
    ranks = [one_of(lender, index) for index in (0, 1)]
    assert [borrower_environment(rank)["CUDA_VISIBLE_DEVICES"] for rank in ranks] == ["2", "5"]
    assert borrower_environment(one_of(slots, 1)) == {}, "a CPU host hides nothing"
    assert one_of(slots, 1).slots == 1.0
    assert placement_faults({"replica": ranks}, slots_by_node={"n": 2.0}) == []
    assert placement_faults({"replica": ranks, "engine": [lender]}, slots_by_node={"n": 4.0}), "both at once would be a fault"
