"""The engines that no hybrid worker owns: the plan's places for them, what runs there, and their change to other degrees."""

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from libra_core.config import LibraConfig
from libra_core.errors import EngineLostError, LibraError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.placement import Placement
from libra_core.runtime.base.rpc import GRACE_S, ActorHandle
from libra_core.runtime.cluster.engine_slots import STOP_DEADLINE_S, EngineSlot, answer_of_fleet, replacement_name
from libra_core.types.ids import EngineId
from libra_core.types.transition import Action, Transition, Verb

logger = logging.getLogger(__name__)

_FREED_S = 60.0
"""In a transition devices are given back before they are asked for: Ray has only to notice."""
Reserve = Callable[[str, int, float], Awaitable[Placement]]
"""So many devices in one node, under this name and within so many seconds."""


class CoreStarter(Protocol):
    """`EngineStarter`."""

    def open(self, engine_id: EngineId, tp: int, placement: Placement, bundle: int = 0) -> EngineSlot: ...
    def occupy(self, slot: EngineSlot, engine_id: EngineId) -> None: ...
    def kill(self, slot: EngineSlot) -> None: ...
    async def start(self, slot: EngineSlot) -> StartedEngine: ...
    async def stop(self, slot: EngineSlot) -> None: ...


class Duty(StrEnum):
    """What the fleet knows of a place's engine, which decides whether one that dies is replaced."""

    NONE = "none"
    """It was not offered, or a transition takes it away: nothing replaces it."""
    OFFERED = "offered"
    """The fleet was asked to take it; its answer may be on the way, or lost."""
    SERVES = "serves"


@dataclass(slots=True, kw_only=True)
class CorePlace:
    """Room for one engine of the plan."""

    tp: int
    slot: EngineSlot | None = None
    """None: it holds no devices."""
    started: StartedEngine | None = None
    """What was started there last; it may have died since."""
    duty: Duty = Duty.NONE
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One start at a time."""

    @property
    def given_up(self) -> bool:
        """Also while a start is waited for."""
        return self.duty is Duty.NONE


class CoreEngines:
    """Owned by the controller's event loop, which runs one transition at a time; replacements go on beside it.

    `engine-N` of a transition is the N-th place; engines that a transition brings get numbers after the last. `settle` numbers
    the places as the plan that is active then counts its engines. Ids of engines are never used again, so they tell nothing of
    places. Actions on several places may run side by side. Every action is idempotent and may find the one before half done; a
    failed one leaves the rest to its inverse.
    """

    def __init__(self, config: LibraConfig, starter: CoreStarter, reserve: Reserve, replacements: "itertools.count[int]") -> None:
        self._config = config
        self._starter = starter
        self._reserve = reserve
        self._replacements = replacements
        self._names = itertools.count(0)
        self._reserve_s = config.rollout.engine_start_deadline_s
        self._places: dict[int, CorePlace] = {}
        self.coordinator: ActorHandle = None

    @property
    def slots(self) -> list[EngineSlot]:
        return [place.slot for place in self._places.values() if place.slot is not None]

    @property
    def started(self) -> list[EngineSlot]:
        """Of these only those whose engine is up: an engine that starts answers late."""
        return [place.slot for place in self._places.values() if place.slot is not None and _has_engine(place)]

    async def start_first(self, degrees: Sequence[int]) -> list[StartedEngine]:
        """When the run starts: the coordinator takes these engines as they are."""
        self._places = {number: CorePlace(tp=tp) for number, tp in enumerate(degrees)}
        started = await asyncio.gather(*(self._ensure(place, self._new_id()) for place in self._places.values()))
        for place in self._places.values():
            place.duty = Duty.SERVES
        self._reserve_s = min(self._reserve_s, _FREED_S)
        return list(started)

    async def perform(self, action: Action) -> None:
        """One action of a transition on the place of that number."""
        number = int(action.target.rpartition("-")[2])
        place = self._places.setdefault(number, CorePlace(tp=action.tp))
        steps: Mapping[Verb, Callable[[CorePlace], Awaitable[None]]] = {
            Verb.DRAIN_ENGINE: self._drain,
            Verb.STOP_ENGINE: self._stop,
            Verb.START_ENGINE: self._start,
            Verb.ADMIT_ENGINE: self._admit,
        }
        await steps[action.verb](place)

    async def announce(self, degrees: Sequence[int], within_s: float) -> None:
        """Tell the fleet which degrees it has, and for how long none of its engines may serve."""
        answer = self.coordinator.expect_engines.remote(tuple(degrees), within_s)
        await answer_of_fleet(answer, "the engines to expect", GRACE_S)

    def bound_s(self, move: Transition) -> float:
        """No transition and its way back take longer."""
        start_s = 2 * self._config.rollout.engine_start_deadline_s
        admit_s = start_s + 2 * (self._config.admission_s + GRACE_S)
        each = {
            Verb.DRAIN_ENGINE: self._config.departure_s + GRACE_S,
            Verb.STOP_ENGINE: STOP_DEADLINE_S,
            Verb.START_ENGINE: start_s,
            Verb.ADMIT_ENGINE: admit_s,
        }
        return sum(each.get(verb, 0.0) for action in move.actions for verb in (action.verb, action.inverse.verb))

    def number_places(self, degrees: Sequence[int], node_of: Callable[[ActorHandle], str]) -> None:
        """Number the places as the plan counts its engines, those of one node one after the other: engines that leave together
        then free devices side by side. What the plan has no place for gives its devices back."""
        by_degree: dict[int, list[CorePlace]] = defaultdict(list)
        for place in self._places.values():
            if place.slot is not None:
                by_degree[place.tp].append(place)
        for places in by_degree.values():
            places.sort(key=lambda place: node_of(place.slot.handle) if place.slot is not None else "")
        numbered = [by_degree[tp].pop(0) if by_degree[tp] else CorePlace(tp=tp) for tp in degrees]
        for place in (place for places in by_degree.values() for place in places):
            self._abandon(place)
        self._places = dict(enumerate(numbered))

    async def conclude(self, degrees: Sequence[int]) -> None:
        """Bring an engine to every place that has none after a change; tell the fleet what it has, and what it does not get."""
        whys = await asyncio.gather(*(self._mended(place) for place in self._places.values() if place.duty is not Duty.SERVES))
        try:
            answer = self.coordinator.note_failure.remote("; ".join(why for why in whys if why))
            await answer_of_fleet(answer, "engines that do not serve", GRACE_S)
            await self.announce(degrees, 0.0)
        except LibraError:
            logger.exception("the fleet was not told what it has")

    def place_of(self, engine_id: EngineId) -> CorePlace | None:
        return next((place for place in self._places.values() if place.slot and place.slot.engine_id == engine_id), None)

    async def replace(self, place: CorePlace, engine_id: EngineId) -> StartedEngine | None:
        """Another engine where one died; None when that place is given up. Raises when it does not come up."""
        async with place.lock:
            if place.given_up or place.slot is None or place.slot.engine_id != engine_id:
                return None
            try:
                started = await self._ensure(place, replacement_name(engine_id, next(self._replacements)))
            except LibraError:
                if not place.given_up:
                    raise
                return None
            return None if place.given_up else started

    async def _drain(self, place: CorePlace) -> None:
        """Its trajectories go on on other engines, or wait for one."""
        place.duty = Duty.NONE
        if place.slot is not None:
            deadline_s = self._config.elastic.drain_s
            answer = self.coordinator.retire_engine.remote(place.slot.engine_id, deadline_s)
            await answer_of_fleet(answer, place.slot.engine_id, self._config.departure_s + GRACE_S)

    async def _stop(self, place: CorePlace) -> None:
        slot, place.slot, place.started = place.slot, None, None
        if slot is not None:
            await self._starter.stop(slot)
            slot.placement.release()

    async def _start(self, place: CorePlace) -> None:
        async with place.lock:
            if not _has_engine(place):
                await self._ensure(place, self._new_id())

    async def _admit(self, place: CorePlace) -> None:
        """With the newest weights. An engine that died since it was started is replaced once."""
        if place.duty is Duty.SERVES:
            return
        await self._start(place)
        place.duty = Duty.OFFERED
        try:
            await self._offer(place)
        except EngineLostError as error:
            logger.warning("%s; another one is started", error)
            async with place.lock:
                await self._ensure(place, self._new_id())
            await self._offer(place)
        place.duty = Duty.SERVES

    async def _offer(self, place: CorePlace) -> None:
        assert place.started is not None
        answer = self.coordinator.admit_engine.remote(place.started)
        await answer_of_fleet(answer, place.started.engine_id, self._config.admission_s + GRACE_S)

    async def _ensure(self, place: CorePlace, engine_id: EngineId) -> StartedEngine:
        """An engine of this name in the place, in the devices that it holds or in others."""
        place.started = None
        if place.slot is None:
            placement = await self._reserve(engine_id, place.tp, self._reserve_s)
            place.slot = self._starter.open(engine_id, place.tp, placement)
        else:
            self._starter.kill(place.slot)
            self._starter.occupy(place.slot, engine_id)
        slot = place.slot
        started = await self._starter.start(slot)
        if place.slot is slot:
            place.started = started
        return started

    async def _mended(self, place: CorePlace) -> str:
        try:
            await self._admit(place)
        except LibraError as error:
            logger.exception("a place of tp %d stays without an engine", place.tp)
            return str(error)
        return ""

    def _abandon(self, place: CorePlace) -> None:
        slot, place.slot, place.duty = place.slot, None, Duty.NONE
        if slot is not None:
            logger.warning("%s has no place in the plan and is ended", slot.engine_id)
            self._starter.kill(slot)
            slot.placement.release()

    def _new_id(self) -> EngineId:
        return EngineId(f"engine-{next(self._names)}")


def _has_engine(place: CorePlace) -> bool:
    return place.slot is not None and place.started is not None and place.started.engine_id == place.slot.engine_id
