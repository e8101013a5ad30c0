"""One replica's GPUs, which hold engines or a training replica, and the way from one to the other and back."""

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from libra_core.config import LibraConfig
from libra_core.elastic.spec import Address, ElasticSpec, HybridSpec, shard_endpoints
from libra_core.errors import DeadlineError, ResourceError
from libra_core.runtime.engine_slots import (
    FLEET_GRACE_S,
    STOP_DEADLINE_S,
    EngineSlot,
    StartedEngine,
    answer_of_fleet,
    quiet,
)
from libra_core.runtime.fleet import ActorHandle, first_line
from libra_core.runtime.placement import Placement, borrower_environment, one_of
from libra_core.runtime.replica_actor import ReplicaActor
from libra_core.runtime.specs import replica_spec, trainer_env
from libra_core.runtime.worker_engines import Starter, WorkerEngines

if TYPE_CHECKING:
    from libra_core.engines.megatron.hybrid import JoinReport

logger = logging.getLogger(__name__)

_CONTROL_S = 30.0
_GRACE_S = 30.0
"""On top of a deadline that the other side keeps itself, so that its sentence is the one that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSide:
    """What a replica needs to know of the core."""

    elastic: ElasticSpec
    addresses: tuple[Address | None, ...]
    """Where the core's ranks listen, in rank order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetting:
    """What all workers of a run share."""

    config: LibraConfig
    model_folder: str
    loopback: bool
    starter: Starter


class HybridWorker:
    """Owned by the controller's event loop, which runs one action at a time on it.

    Every action is idempotent, and may find the work of the one before half done. A failed action leaves the rest to its inverse.
    """

    def __init__(self, slot: int, placement: Placement, setting: WorkerSetting) -> None:
        self.slot = slot
        self.placement = placement
        self.core: CoreSide | None = None
        self.coordinator: ActorHandle = None
        self._setting = setting
        self._engines = WorkerEngines(f"hybrid-{slot}", placement, setting.config, setting.starter)
        self._ranks: list[ActorHandle] = []
        self._serves = False
        self.joined: int | None = None
        """Epoch under which the replica takes part, or took part last."""
        self.join_report: JoinReport | None = None

    @property
    def engines(self) -> list[EngineSlot]:
        """That have the devices; see `resting`."""
        return self._engines.awake

    @property
    def resting(self) -> list[EngineSlot]:
        """Engines that sleep while the replica has their devices."""
        return [slot for slot in self._engines.held if slot not in self._engines.awake]

    @property
    def ranks(self) -> list[ActorHandle]:
        """Of the replica, in rank order."""
        return list(self._ranks)

    async def drain(self) -> None:
        """Its trajectories go on on other engines."""
        if not self._serves:
            return
        self._serves = False
        deadline_s = self._setting.config.elastic.drain_s
        for slot in self._engines.held:
            answer = self.coordinator.retire_engine.remote(slot.engine_id, deadline_s)
            await answer_of_fleet(answer, slot.engine_id, self._setting.config.departure_s + FLEET_GRACE_S)

    async def admit(self) -> None:
        """Serve with the newest weights; each engine has scored the canary before."""
        if self._serves:
            return
        deadline_s = self._setting.config.admission_s + FLEET_GRACE_S
        answers = [(engine.engine_id, self.coordinator.admit_engine.remote(engine)) for engine in self._engines.started]
        await asyncio.gather(*(answer_of_fleet(answer, engine_id, deadline_s) for engine_id, answer in answers))
        self._serves = True

    async def stop_engine(self) -> None:
        """Its devices are free for the replica; `elastic.idle_engine` says what becomes of its processes."""
        await self._engines.rest()

    async def start_engine(self) -> None:
        await self._engines.start()

    async def start_first(self) -> list[StartedEngine]:
        """When the run starts: the coordinator takes these engines as they are."""
        await self.start_engine()
        self._serves = True
        return list(self._engines.started)

    def note_replaced(self, slot: EngineSlot, engine: StartedEngine) -> None:
        """An engine died while it served, and another one stands in its place."""
        self._engines.note_replaced(slot, engine)

    async def start_replica(self) -> None:
        """A Megatron world of its own, with the start weights."""
        if self._ranks:
            return
        assert self.core is not None, "the core has not started"
        config, layout = self._setting.config, self._setting.config.training.layout
        deadline_s = config.training.start_deadline_s
        self._ranks = [self._rank_actor(rank) for rank in range(layout.tp * layout.pp)]
        try:
            hosts = await asyncio.wait_for(
                asyncio.gather(*(rank.host.remote(self._setting.loopback) for rank in self._ranks)), deadline_s
            )
            host, port = await asyncio.wait_for(self._ranks[0].rendezvous.remote(hosts[0]), deadline_s)
            specs = [
                replica_spec(config, self._setting.model_folder, rank=number, host=host, port=port)
                for number in range(len(self._ranks))
            ]
            starts = [
                rank.start.remote(spec, self.core.elastic, self._hybrid_spec())
                for rank, spec in zip(self._ranks, specs, strict=True)
            ]
            await asyncio.wait_for(asyncio.gather(*starts), deadline_s)
        except TimeoutError:
            raise ResourceError(
                f"replica hybrid-{self.slot} did not start within training.start_deadline_s = {deadline_s:.0f} s"
            ) from None
        except RayError as error:
            raise ResourceError(f"replica hybrid-{self.slot} did not start: {first_line(error)}") from error

    async def stop_replica(self) -> None:
        """Its connection ends with it; the core goes on without."""
        ranks, self._ranks = self._ranks, []
        self.joined = None
        try:
            await asyncio.wait_for(asyncio.gather(*(quiet(rank.close.remote()) for rank in ranks)), STOP_DEADLINE_S)
        except TimeoutError:
            logger.warning("replica hybrid-%d did not stop within %.0f s and is killed", self.slot, STOP_DEADLINE_S)
        self.kill_replica(ranks)

    def kill_replica(self, ranks: list[ActorHandle] | None = None) -> None:
        """Without asking it anything."""
        for rank in self._ranks if ranks is None else ranks:
            ray.kill(rank, no_restart=True)
        if ranks is None:
            self._ranks = []
            self.joined = None

    async def join(self, epoch: int) -> None:
        """Returns when the core counts on it; the core's own steps decide how long that takes."""
        if self.joined is not None:
            return
        deadline_s = self._setting.config.elastic.join_s
        joins = [rank.join.remote(epoch, deadline_s) for rank in self._ranks]
        self.joined = epoch  # from here on the core may count on it, whatever becomes of the call
        try:
            reports = await asyncio.wait_for(asyncio.gather(*joins), deadline_s + _GRACE_S)
        except TimeoutError:
            raise DeadlineError(f"replica hybrid-{self.slot} did not join within elastic.join_s = {deadline_s:.0f} s") from None
        except RayError as error:
            raise ResourceError(f"replica hybrid-{self.slot} did not join: {first_line(error)}") from error
        self.join_report = reports[0]

    async def ask_to_leave(self) -> None:
        """The core leaves it out of the steps after the one in work."""
        await asyncio.wait_for(asyncio.gather(*(quiet(rank.leave.remote()) for rank in self._ranks)), _CONTROL_S)

    async def cut(self) -> None:
        """Out at once."""
        self.joined = None
        await asyncio.wait_for(asyncio.gather(*(quiet(rank.cut.remote()) for rank in self._ranks)), _CONTROL_S)

    def release(self) -> None:
        self.placement.release()

    def _rank_actor(self, rank: int) -> Any:
        """On one device of the bundle; Ray gives none of a bundle whose engine rests, so the engine lends it."""
        env, lenders = trainer_env(self._setting.config, self._setting.loopback), self._engines.lent
        bundle, index = divmod(rank, self._setting.config.rollout.engines[0].tp)
        lent = one_of(lenders[bundle], index) if lenders else None
        if lent is not None:
            env |= borrower_environment(lent)
        options = self.placement.actor_options(bundle, env, devices_taken=1 if lent is None else 0)
        return ray.remote(ReplicaActor).options(**options).remote(lent)

    def _hybrid_spec(self) -> HybridSpec:
        assert self.core is not None
        layout = self._setting.config.training.layout
        endpoints = shard_endpoints(
            self.core.addresses,
            slot=self.slot,
            model_parallel=(layout.tp, layout.pp),
            distributed_optimizer=layout.distributed_optimizer,
        )
        return HybridSpec(slot=self.slot, core_dp=layout.dp, endpoints=endpoints)
