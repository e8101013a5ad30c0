"""Engines, devices and a fleet without Ray or vLLM, which keep account of each other and fail on order."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from libra_core.config import LibraConfig
from libra_core.config.loading import validate_config
from libra_core.errors import EngineLostError, ResourceError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.cluster.core_engines import CoreEngines
from libra_core.runtime.cluster.engine_slots import EngineSlot
from libra_core.types.ids import EngineId
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout


def config_of(*, tp: int = 1, count: int = 4) -> LibraConfig:
    return validate_config({"rollout": {"engines": [{"tp": tp, "count": count}]}, "replanning": {"repartition": True}})


def fleet_plan(engines: dict[int, int]) -> Plan:
    return Plan(train=TrainLayout(), rollout=RolloutLayout(engines=tuple(engines.items())))


@dataclass(eq=False)
class Handle:
    """An engine's process."""

    engine_id: EngineId
    node: int
    alive: bool = True


@dataclass
class Remote:
    """A method of an actor."""

    call: Callable[..., Awaitable[Any]]

    def remote(self, *args: Any) -> Awaitable[Any]:
        return self.call(*args)


@dataclass
class Devices:
    """A reservation; giving it back twice frees nothing twice."""

    world: "FakeWorld"
    node: int
    tp: int
    held: bool = True

    def release(self) -> None:
        if self.held:
            self.held = False
            self.world.free[self.node] += self.tp


@dataclass
class FakeWorld:
    """Starter, devices and coordinator at once. What `fails` names raises once, half done."""

    free: list[int]
    """Devices by node."""
    spread: bool = False
    """Reserve on the emptiest node instead of the first."""
    fails: str = ""
    serving: dict[EngineId, StartedEngine] = field(default_factory=dict)
    degrees: tuple[int, ...] = ()
    expects: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    names: list[EngineId] = field(default_factory=list)
    largest: int = 8
    """Devices of a node."""
    least: int = 10**6
    """Engines that served at the worst moment since this was reset."""

    def core(self, config: LibraConfig) -> CoreEngines:
        core = CoreEngines(config, self, self.reserve, itertools.count(1))
        core.coordinator = self
        return core

    def node_of(self, handle: Handle) -> str:
        return str(handle.node)

    def largest_node(self, _resource: str) -> int:
        return self.largest

    def _done(self, name: str) -> None:
        if self.fails == name:
            self.fails = ""
            raise ResourceError(f"no luck with {name}")

    async def reserve(self, name: str, tp: int, _deadline_s: float) -> Any:
        self._done("reserve")
        nodes = [node for node, free in enumerate(self.free) if free >= tp]
        if not nodes:
            raise ResourceError(f"{name} needs {tp} devices in one node, and {self.free} are free")
        node = max(nodes, key=lambda node: self.free[node]) if self.spread else nodes[0]
        self.free[node] -= tp
        return Devices(world=self, node=node, tp=tp)

    # --- the starter
    def open(self, engine_id: EngineId, tp: int, placement: Any, bundle: int = 0) -> EngineSlot:
        slot = EngineSlot(tp=tp, placement=placement, bundle=bundle, engine_id=engine_id, handle=None)
        self.occupy(slot, engine_id)
        return slot

    def occupy(self, slot: EngineSlot, engine_id: EngineId) -> None:
        assert slot.placement.held, "an engine needs its devices"
        assert engine_id not in self.names, "names are used once"
        self.names.append(engine_id)
        slot.engine_id, slot.handle = engine_id, Handle(engine_id=engine_id, node=slot.placement.node)

    async def start(self, slot: EngineSlot) -> StartedEngine:
        handle = slot.handle
        self._done("start")
        if not handle.alive:
            raise ResourceError(f"{handle.engine_id} did not start")
        return StartedEngine(engine_id=handle.engine_id, tp=slot.tp, kv_tokens=1000 * slot.tp, handle=handle)

    def kill(self, slot: EngineSlot) -> None:
        slot.handle.alive = False

    async def stop(self, slot: EngineSlot) -> None:
        assert slot.engine_id not in self.serving, "it still has trajectories"
        slot.handle.alive = False

    # --- the coordinator
    @property
    def retire_engine(self) -> Remote:
        return Remote(self._retire)

    async def _retire(self, engine_id: EngineId, _deadline_s: float) -> None:
        self.serving.pop(engine_id, None)
        self.least = min(self.least, len(self.serving))
        self._done("retire")

    @property
    def admit_engine(self) -> Remote:
        return Remote(self._admit)

    async def _admit(self, engine: StartedEngine) -> None:
        if not engine.handle.alive:
            raise EngineLostError(f"{engine.engine_id} died")
        assert engine.tp in self.degrees, "its bucket is there before it"
        self.serving[engine.engine_id] = engine
        self._done("admit")

    @property
    def expect_engines(self) -> Remote:
        return Remote(self._expect)

    async def _expect(self, degrees: tuple[int, ...], within_s: float) -> None:
        self.degrees = tuple(sorted({*degrees, *(engine.tp for engine in self.serving.values())}))
        self.expects.append(within_s)

    @property
    def note_failure(self) -> Remote:
        return Remote(self._note)

    async def _note(self, sentence: str) -> None:
        """Empty: all engines of the plan serve."""
        self.failures = [*self.failures, sentence] if sentence else []

    # --- for claims
    def die(self, engine_id: EngineId) -> None:
        """The fleet sees it at the next turn."""
        self.serving.pop(engine_id).handle.alive = False

    def served(self) -> list[int]:
        return sorted(engine.tp for engine in self.serving.values())
