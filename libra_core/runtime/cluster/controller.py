"""Cluster controller: owns the active plan, and starts, replaces, moves and stops the actors that carry it out."""

import asyncio
import itertools
import logging
import secrets
import time
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from libra_core.config import LibraConfig
from libra_core.elastic.handshake import SECRET_BYTES
from libra_core.elastic.membership import MemberState
from libra_core.errors import LibraError, ResourceError
from libra_core.planning.transition import transition
from libra_core.runtime.base.actors import StartedEngine, TrainerActor
from libra_core.runtime.base.background import BackgroundTasks
from libra_core.runtime.base.placement import GPU_SLOT, ActorPlaces, Placement, device_kind, reserve
from libra_core.runtime.base.rpc import CALL_DEADLINE_S, ActorHandle, first_line, reply
from libra_core.runtime.base.specs import elastic_spec, trainer_env, trainer_spec
from libra_core.runtime.cluster.core_engines import CoreEngines
from libra_core.runtime.cluster.engine_slots import STOP_DEADLINE_S, EngineStarter, quiet, replacement_name
from libra_core.runtime.cluster.hybrid_pool import HybridPool, Recovery
from libra_core.runtime.cluster.hybrid_worker import CoreSide, HybridWorker, WorkerSetting
from libra_core.runtime.cluster.transitions import TransitionOutcome, carry_out, refusal
from libra_core.types.ids import EngineId
from libra_core.types.plan import Plan
from libra_core.types.transition import Action, Tier, Transition, Verb

logger = logging.getLogger(__name__)

_NAME = "the cluster controller"
_VERIFIED = frozenset({Verb.START_ENGINE, Verb.START_REPLICA})


class ClusterControllerActor:
    """Owns every engine, trainer and hybrid replica actor, which end with it. An async actor.

    `scratch` is a folder of the run on this host, given when all actors live here; they then talk over loopback.
    One transition or recovery at a time (`_moving`); replacements of engines that died go on beside it.
    Shut down by `stop`: engines first (they own child processes), trainers next, placement groups last.
    """

    def __init__(self, config: LibraConfig, model_folder: str, plan: Plan, scratch: str | None) -> None:
        self._config = config
        self._model_folder = model_folder
        self._plan = plan
        self._loopback = scratch is not None
        self._starter = EngineStarter(config, model_folder, scratch)
        self._trainers: list[ActorHandle] = []
        self._placements: list[Placement] = []
        self._replacements = itertools.count(1)
        self._core = CoreEngines(config, self._starter, self._reserve_engine, self._replacements)
        self._pool = HybridPool(config, [])
        self._elastic = elastic_spec(config, secrets.token_bytes(SECRET_BYTES))
        self._recoveries: list[Recovery] = []
        self._moving = asyncio.Lock()
        self._tasks = BackgroundTasks(_NAME, self._tell_fault)
        self._places = ActorPlaces()

    async def plan(self) -> Plan:
        return self._plan

    async def start_engines(self) -> list[StartedEngine]:
        """All engines of the plan, those of hybrid workers included, started at once."""
        hybrids = self._plan.hybrid_replicas * self._config.hybrid_engines
        degrees = self._plan.rollout.degrees
        fixed = degrees[: len(degrees) - hybrids]
        workers = await asyncio.gather(*(self._hybrid_worker(slot) for slot in range(self._plan.hybrid_replicas)))
        self._pool = HybridPool(self._config, workers)
        started = await self._core.start_first(fixed)
        of_workers = await asyncio.gather(*(worker.start_first() for worker in workers))
        return [*started, *(engine for engines in of_workers for engine in engines)]

    async def start_trainers(self) -> list[ActorHandle]:
        """The training world: one actor per rank, tensor-parallel groups inside a node.

        Devices are waited for as long as `training.start_deadline_s`, and the ranks as long again.
        """
        layout = self._plan.train
        deadline_s = self._config.training.start_deadline_s
        end_s = time.monotonic() + deadline_s
        for group in range(layout.pp * layout.dp):
            placement = await self._reserve(
                bundles=layout.tp, devices=1, name=f"trainer-tp-group-{group}", deadline_s=_left_s(end_s)
            )
            for rank_in_group in range(layout.tp):
                options = placement.actor_options(rank_in_group, trainer_env(self._config, self._loopback))
                rank = len(self._trainers)
                self._trainers.append(ray.remote(TrainerActor).options(name=f"trainer-{rank}", **options).remote())
        end_s = time.monotonic() + deadline_s
        rendezvous = self._trainers[0].rendezvous.remote(self._loopback)
        host, port = await reply(_NAME, "a port of trainer rank 0", rendezvous, _left_s(end_s))
        specs = [
            trainer_spec(self._config, self._model_folder, rank=rank, world_size=len(self._trainers), host=host, port=port)
            for rank in range(len(self._trainers))
        ]
        if self._elastic is not None:
            asked = [trainer.host.remote(self._loopback) for trainer in self._trainers]
            hosts = await self._of_trainers("tell its host", asked, _left_s(end_s))
            specs = [replace(spec, elastic=replace(self._elastic, host=own)) for spec, own in zip(specs, hosts, strict=True)]
        starts = [trainer.start.remote(spec) for trainer, spec in zip(self._trainers, specs, strict=True)]
        await self._of_trainers("start (training.start_deadline_s)", starts, _left_s(end_s))
        return list(self._trainers)

    async def attach(self, coordinator: ActorHandle) -> None:
        """Whose fleet engines leave and join. After `start_engines` and `start_trainers`."""
        self._core.coordinator = coordinator
        if self._elastic is not None:
            asked = [trainer.exchange_address.remote() for trainer in self._trainers]
            addresses = await self._of_trainers("tell where its side channel listens", asked, CALL_DEADLINE_S)
            for worker in self._pool.workers:
                worker.coordinator = coordinator
                worker.core = CoreSide(elastic=self._elastic, addresses=tuple(addresses))
        faults = await self._placement_faults()
        if faults:
            raise ResourceError(f"Ray did not place the plan as asked: {'; '.join(faults)}")
        if not self._plan.hybrid_replicas:
            self._core.number_places(self._plan.rollout.degrees, self._places.node_of)

    async def replace_engine(self, engine_id: EngineId) -> StartedEngine | None:
        """Kill what is left of an engine and start another in its place; None where the plan has no such place any more.

        Raises when it does not come up.
        """
        place = self._core.place_of(engine_id)
        try:
            if place is not None:
                return await self._core.replace(place, engine_id)
            return await self._replace_hybrid(engine_id)
        except LibraError:
            if self._plan.hybrids_training:
                self._tasks.spawn(self._call_back())
            raise

    async def carry_out(self, move: Transition) -> TransitionOutcome:
        """Apply it in whole, or undo what was begun of it and keep the old plan."""
        async with self._moving:
            error = refusal(move, self._plan)
            if error:
                return TransitionOutcome(plan=self._plan, applied=False, error=error)
            if move.tier is Tier.REPARTITION:
                outcome = await self._repartition(move)
            else:
                outcome = await carry_out(move, self._perform)
                self._plan = replace(outcome.plan, hybrids_training=self._pool.order_places())
        if outcome.not_undone:
            logger.error("the old plan is not whole again: %s", "; ".join(outcome.not_undone))
            for slot in self._stranded():
                self._tasks.spawn(self._recover(slot))
        return outcome

    async def note_active(self, version: int, active: dict[int, int]) -> None:
        """What the core says of the step that starts from this version: slot to epoch of the replicas in it."""
        for slot, epoch in (await self._pool.note_active(version, active)).items():
            logger.warning("hybrid-%d was lost while it trained; its GPUs go back to the fleet", slot)
            self._pool.mark_lost(slot, epoch)
            if not self._moving.locked():  # else the end of the transition counts who trains
                self._plan = replace(self._plan, hybrids_training=self._pool.order_places())
            self._tasks.spawn(self._recover(slot))

    async def replica_ranks(self, slot: int) -> list[ActorHandle]:
        """Of the replica that is in this slot now."""
        return self._pool.worker(slot).ranks

    async def recoveries(self) -> list[Recovery]:
        """Of replicas that were lost, in order."""
        return list(self._recoveries)

    async def stop(self) -> None:
        """An engine that is still starting hears nothing until it has: it is killed without being asked."""
        await self._tasks.end(STOP_DEADLINE_S / 2)
        core, up = self._core.slots, self._core.started
        of_workers = [slot for worker in self._pool.workers for slot in (*worker.engines, *worker.resting)]
        slots = [*core, *of_workers]
        ranks = [rank for worker in self._pool.workers for rank in worker.ranks]
        stops = [
            quiet(f"{slot.engine_id} to stop, before it is killed,", slot.handle.stop.remote(), STOP_DEADLINE_S)
            for slot in (*up, *of_workers)
        ]
        stops += [
            quiet("a trainer rank to close, before it is killed,", rank.close.remote(), STOP_DEADLINE_S)
            for rank in [*self._trainers, *ranks]
        ]
        await asyncio.gather(*stops)
        for actor in [*(slot.handle for slot in slots), *self._trainers, *ranks]:
            ray.kill(actor, no_restart=True)
        for placement in [*(slot.placement for slot in core), *self._placements]:
            placement.release()

    async def _repartition(self, move: Transition) -> TransitionOutcome:
        """The fleet knows how long it may have no engine, and which degrees there will be."""
        wide = max(move.target.rollout.degrees)
        if wide > (most := self._places.largest_node(self._resource)):
            error = (
                f"an engine of tp {wide} needs as many devices in one node, and the largest has {most}; set planner.gpus_per_node"
            )
            return TransitionOutcome(plan=self._plan, applied=False, error=error)
        try:
            await self._core.announce((*move.source.rollout.degrees, *move.target.rollout.degrees), self._core.bound_s(move))
        except LibraError as error:
            return TransitionOutcome(plan=self._plan, applied=False, error=str(error))
        outcome = await carry_out(move, self._perform)
        self._plan = outcome.plan
        self._core.number_places(self._plan.rollout.degrees, self._places.node_of)
        await self._core.conclude(self._plan.rollout.degrees)
        return outcome

    async def _perform(self, action: Action) -> None:
        await (self._pool if action.target.startswith("hybrid") else self._core).perform(action)
        if action.verb in _VERIFIED:
            faults = await self._placement_faults()
            if faults:
                raise ResourceError(f"after {action}: {'; '.join(faults)}")

    async def _recover(self, slot: int) -> None:
        """Waits for a transition that is under way."""
        lost_s = time.time()
        async with self._moving:
            try:
                await self._pool.recover(slot)
            except (LibraError, RayError) as error:
                logger.exception("hybrid-%d does not serve again", slot)
                self._recoveries.append(Recovery(slot=slot, lost_s=lost_s, error=first_line(error)))
                return
        self._recoveries.append(Recovery(slot=slot, lost_s=lost_s, serving_s=time.time()))

    async def _call_back(self) -> None:
        """An engine is gone for good: a replica that trains serves instead."""
        if not self._plan.hybrids_training:  # it was called back for another one meanwhile
            return
        fewer = replace(self._plan, hybrids_training=self._plan.hybrids_training - 1)
        outcome = await self.carry_out(transition(self._plan, fewer))
        logger.warning(
            "a hybrid replica %s for a lost engine", "serves" if outcome.applied else f"could not serve ({outcome.error})"
        )

    def _stranded(self) -> list[int]:
        return [slot for slot, state in self._pool.states().items() if state not in (MemberState.SERVING, MemberState.ACTIVE)]

    async def _replace_hybrid(self, engine_id: EngineId) -> StartedEngine | None:
        owners = ((worker, slot) for worker in self._pool.workers for slot in worker.engines if slot.engine_id == engine_id)
        worker, slot = next(owners, (None, None))
        if worker is None or slot is None:
            return None
        self._starter.kill(slot)
        self._starter.occupy(slot, replacement_name(engine_id, next(self._replacements)))
        engine = await self._starter.start(slot)
        worker.note_replaced(slot, engine)
        return engine

    async def _placement_faults(self) -> list[str]:
        """Where the actors of the plan are, against what it says of them."""
        layout = self._plan.train
        tp_groups = {
            f"trainer group {first // layout.tp}": self._trainers[first : first + layout.tp]
            for first in range(0, len(self._trainers), layout.tp)
        }
        tp_groups |= {str(slot.engine_id): [slot.handle] for slot in self._core.started}
        for worker in self._pool.workers:
            tp_groups |= {str(slot.engine_id): [slot.handle] for slot in worker.engines}
            if worker.ranks:
                tp_groups[f"replica hybrid-{worker.slot}"] = worker.ranks
        return await self._places.faults(tp_groups, self._resource)

    @property
    def _resource(self) -> str:
        return "GPU" if device_kind(self._config) == "gpu" else GPU_SLOT

    async def _hybrid_worker(self, slot: int) -> HybridWorker:
        config = self._config
        placement = await self._reserve(
            bundles=config.hybrid_engines,
            devices=config.rollout.engines[0].tp,
            name=f"hybrid-{slot}",
            deadline_s=config.rollout.engine_start_deadline_s,
        )
        setting = WorkerSetting(config=config, model_folder=self._model_folder, loopback=self._loopback, starter=self._starter)
        return HybridWorker(slot, placement, setting)

    async def _reserve_engine(self, name: str, devices: int, deadline_s: float) -> Placement:
        """Given back with the engine, by whoever asked."""
        kind = device_kind(self._config)
        return await reserve(kind, bundles=1, devices_per_bundle=devices, name=f"libra/{name}", deadline_s=deadline_s)

    async def _reserve(self, *, bundles: int, devices: int, name: str, deadline_s: float) -> Placement:
        kind = device_kind(self._config)
        placement = await reserve(kind, bundles=bundles, devices_per_bundle=devices, name=f"libra/{name}", deadline_s=deadline_s)
        self._placements.append(placement)
        return placement

    async def _of_trainers(self, what: str, asked: list[Any], deadline_s: float) -> list[Any]:
        """Of every rank, asked at once. Raises as `reply` does, for the first that fails."""
        answers = (reply(_NAME, f"trainer rank {rank} to {what}", answer, deadline_s) for rank, answer in enumerate(asked))
        return list(await asyncio.gather(*answers))

    def _tell_fault(self, sentence: str) -> None:
        """Whoever waits for a batch asks the coordinator."""
        if self._core.coordinator is not None:
            noted = self._core.coordinator.note_fault.remote(sentence)
            self._tasks.spawn(quiet("the rollout coordinator to note a fault", noted, CALL_DEADLINE_S))


def _left_s(end_s: float) -> float:
    """Of a deadline on the monotonic clock; what is late by then has a last second."""
    return max(1.0, end_s - time.monotonic())
