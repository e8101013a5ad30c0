"""Cluster controller: owns the active plan, and starts, replaces and stops the actors that carry it out."""

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from libra_core.config import LibraConfig
from libra_core.errors import ResourceError
from libra_core.runtime.actors import EngineActor, TrainerActor
from libra_core.runtime.fleet import ActorHandle, first_line
from libra_core.runtime.placement import Placement, device_kind, reserve
from libra_core.runtime.specs import engine_spec, trainer_env, trainer_spec
from libra_core.types.ids import EngineId
from libra_core.types.plan import Plan

logger = logging.getLogger(__name__)

_STOP_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedEngine:
    """An engine that serves."""

    engine_id: EngineId
    tp: int
    kv_tokens: int
    handle: ActorHandle


@dataclass(slots=True, kw_only=True)
class EngineSlot:
    """A place for an engine; its occupant changes when an engine is replaced."""

    tp: int
    placement: Placement
    engine_id: EngineId
    handle: ActorHandle


class ClusterControllerActor:
    """Owns every engine and trainer actor, which end with it. An async actor.

    `scratch` is a folder of the run on this host, given when all actors live here; they then talk over loopback.
    Shut down by `stop`: engines first (they own child processes), trainers next, placement groups last.
    """

    def __init__(self, config: LibraConfig, model_folder: str, plan: Plan, scratch: str | None) -> None:
        self._config = config
        self._model_folder = model_folder
        self._plan = plan
        self._scratch = scratch
        self._loopback = scratch is not None
        self._slots: dict[int, EngineSlot] = {}
        self._trainers: list[ActorHandle] = []
        self._placements: list[Placement] = []
        self._replacements = itertools.count(1)

    async def plan(self) -> Plan:
        return self._plan

    async def start_engines(self) -> list[StartedEngine]:
        """All engines of the plan, started at once."""
        degrees = self._plan.rollout.degrees
        return list(await asyncio.gather(*(self._start_slot(number, tp) for number, tp in enumerate(degrees))))

    async def start_trainers(self) -> list[ActorHandle]:
        """The training world: one actor per rank, tensor-parallel groups inside a node."""
        layout = self._plan.train
        deadline_s = self._config.training.start_deadline_s
        for group in range(layout.pp * layout.dp):
            placement = await reserve(
                device_kind(self._config),
                bundles=layout.tp,
                devices_per_bundle=1,
                name=f"libra/trainer-tp-group-{group}",
                deadline_s=deadline_s,
            )
            self._placements.append(placement)
            for rank_in_group in range(layout.tp):
                options = placement.actor_options(rank_in_group, trainer_env(self._config, self._loopback))
                rank = len(self._trainers)
                self._trainers.append(ray.remote(TrainerActor).options(name=f"trainer-{rank}", **options).remote())
        host, port = await self._trainers[0].rendezvous.remote(self._loopback)
        specs = [
            trainer_spec(self._config, self._model_folder, rank=rank, world_size=len(self._trainers), host=host, port=port)
            for rank in range(len(self._trainers))
        ]
        starts = [trainer.start.remote(spec) for trainer, spec in zip(self._trainers, specs, strict=True)]
        await asyncio.wait_for(asyncio.gather(*starts), deadline_s)
        return list(self._trainers)

    async def replace_engine(self, engine_id: EngineId) -> StartedEngine:
        """Kill what is left of an engine and start another in its place; raises when it does not come up."""
        number, slot = next((n, s) for n, s in self._slots.items() if s.engine_id == engine_id)
        ray.kill(slot.handle, no_restart=True)
        slot.engine_id = EngineId(f"engine-{number}r{next(self._replacements)}")
        slot.handle = self._engine_actor(slot.engine_id, slot.tp, slot.placement)
        return await self._await_engine(slot)

    async def stop(self) -> None:
        stops = [_quiet(slot.handle.stop.remote()) for slot in self._slots.values()]
        stops += [_quiet(trainer.close.remote()) for trainer in self._trainers]
        try:
            await asyncio.wait_for(asyncio.gather(*stops), _STOP_DEADLINE_S)
        except TimeoutError:
            logger.warning("some of %d actors did not stop within %.0f s and are killed", len(stops), _STOP_DEADLINE_S)
        for actor in [*(slot.handle for slot in self._slots.values()), *self._trainers]:
            ray.kill(actor, no_restart=True)
        for placement in self._placements:
            placement.release()

    async def _start_slot(self, number: int, tp: int) -> StartedEngine:
        engine_id = EngineId(f"engine-{number}")
        placement = await reserve(
            device_kind(self._config),
            bundles=1,
            devices_per_bundle=tp,
            name=f"libra/{engine_id}",
            deadline_s=self._config.rollout.engine_start_deadline_s,
        )
        self._placements.append(placement)
        handle = self._engine_actor(engine_id, tp, placement)
        slot = EngineSlot(tp=tp, placement=placement, engine_id=engine_id, handle=handle)
        self._slots[number] = slot
        return await self._await_engine(slot)

    def _engine_actor(self, engine_id: EngineId, tp: int, placement: Placement) -> Any:
        spec, env = engine_spec(self._config, self._model_folder, engine_id=engine_id, tp=tp, scratch=self._scratch)
        options = placement.actor_options(0, env)
        return ray.remote(EngineActor).options(name=engine_id, max_concurrency=4096, **options).remote(spec)

    async def _await_engine(self, slot: EngineSlot) -> StartedEngine:
        deadline_s = self._config.rollout.engine_start_deadline_s
        try:
            facts = await asyncio.wait_for(slot.handle.start.remote(), deadline_s)
        except TimeoutError:
            raise ResourceError(
                f"{slot.engine_id} did not start within rollout.engine_start_deadline_s = {deadline_s:.0f} s; "
                "raise it on a slow host, or look into the run folder's logs"
            ) from None
        except RayError as error:
            raise ResourceError(f"{slot.engine_id} did not start: {first_line(error)}") from error
        return StartedEngine(engine_id=slot.engine_id, tp=slot.tp, kv_tokens=facts.kv_tokens, handle=slot.handle)


async def _quiet(reference: Any) -> None:
    """Wait for a stop call; an actor that is already dead has stopped."""
    try:
        await reference
    except RayError as error:
        logger.info("actor was already gone: %s", first_line(error))
