"""The engines that the devices of a hybrid worker hold, or that rest while a replica does."""

import asyncio
import itertools
from typing import Protocol

from libra_core.config import LibraConfig
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.placement import Placement, Whereabouts
from libra_core.runtime.cluster.engine_slots import EngineSlot
from libra_core.types.ids import EngineId


class WorkerStarter(Protocol):
    """What brings engines up and down; see `EngineStarter`."""

    def open(self, engine_id: EngineId, tp: int, placement: Placement, bundle: int = 0, *, rests: bool = False) -> EngineSlot: ...
    async def start(self, slot: EngineSlot) -> StartedEngine: ...
    async def stop(self, slot: EngineSlot) -> None: ...
    async def sleep(self, slot: EngineSlot) -> Whereabouts | None: ...
    async def wake(self, slot: EngineSlot) -> bool: ...


class WorkerEngines:
    """Owned by the controller's event loop, which runs one action at a time on it. Every action is idempotent.

    An engine that does not fall asleep is stopped, and one that does not wake is started anew: resting saves time, and nothing
    depends on it.
    """

    def __init__(self, name: str, placement: Placement, config: LibraConfig, starter: WorkerStarter) -> None:
        self._name = name
        self._placement = placement
        self._config = config
        self._starter = starter
        self._names = itertools.count(0)
        self.held: list[EngineSlot] = []
        """All that have a process, the resting ones included."""
        self.started: list[StartedEngine] = []
        """All of them or none: those that serve or can."""
        self._resting: list[StartedEngine] = []
        self.lent: list[Whereabouts] = []
        """By engine: the devices that it gave away while it rests; Ray counts them as its own all the same."""

    @property
    def awake(self) -> list[EngineSlot]:
        return [] if self._resting else list(self.held)

    async def start(self) -> None:
        """Those that rest wake up."""
        if self.started or await self._wake():
            return
        await self.stop()
        self.open()
        self.started = list(await asyncio.gather(*(self._starter.start(slot) for slot in self.held)))

    def open(self) -> None:
        number, tp = next(self._names), self._config.rollout.engines[0].tp
        count = self._config.hybrid_engines
        names = [f"{self._name}.{index}" if count > 1 else self._name for index in range(count)]
        self.held = [
            self._starter.open(
                EngineId(f"{name}e{number}" if number else name),
                tp,
                self._placement,
                bundle,
                rests=self._config.hybrid_engines_sleep,
            )
            for bundle, name in enumerate(names)
        ]

    async def rest(self) -> None:
        """Free the devices; where the engines cannot sleep, by ending them."""
        if self._resting:
            return
        if self._config.hybrid_engines_sleep and self._whole:
            places = await asyncio.gather(*(self._starter.sleep(slot) for slot in self.held))
            lent = [place for place in places if place is not None]
            if len(lent) == len(self.held):
                self._resting, self.started, self.lent = self.started, [], lent
                return
        await self.stop()

    async def stop(self) -> None:
        await asyncio.gather(*(self._starter.stop(slot) for slot in self.held))
        self.held, self.started, self._resting, self.lent = [], [], [], []

    def note_replaced(self, slot: EngineSlot, engine: StartedEngine) -> None:
        """An engine died while it served, and another one stands in its place, unless the place was given up meanwhile."""
        if self.started and slot in self.held:
            self.started[self.held.index(slot)] = engine

    @property
    def _whole(self) -> bool:
        """No engine is being replaced."""
        return bool(self.held) and [engine.handle for engine in self.started] == [slot.handle for slot in self.held]

    async def _wake(self) -> bool:
        resting, self._resting, self.lent = self._resting, [], []
        if not resting or not all(await asyncio.gather(*(self._starter.wake(slot) for slot in self.held))):
            return False
        self.started = resting
        return True
