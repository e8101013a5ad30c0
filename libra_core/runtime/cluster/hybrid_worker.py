"""One replica's GPUs, which hold engines or a training replica, and the way from one to the other and back."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from libra_core.config import LibraConfig
from libra_core.elastic.spec import Address, ElasticSpec, HybridSpec, shard_endpoints
from libra_core.errors import DeadlineError, LibraError, ResourceError
from libra_core.runtime.base.actors import ReplicaActor, StartedEngine
from libra_core.runtime.base.placement import Placement, borrower_environment, one_of
from libra_core.runtime.base.rpc import GRACE_S, ActorHandle, first_line, reply
from libra_core.runtime.base.specs import replica_spec, trainer_env
from libra_core.runtime.cluster.engine_slots import STOP_DEADLINE_S, EngineSlot, answer_of_fleet, quiet
from libra_core.runtime.cluster.worker_engines import WorkerEngines, WorkerStarter

if TYPE_CHECKING:
    from libra_core.engines.megatron.hybrid import JoinReport

logger = logging.getLogger(__name__)

_CONTROL_S = 30.0


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
    starter: WorkerStarter


class HybridWorker:
    """Owned by the controller's event loop, which runs one action at a time on it.

    Whether it serves, joins or trains is the pool's to know. Every action is idempotent, and may find the work of the one before
    half done. A failed action leaves the rest to its inverse.
    """

    def __init__(self, slot: int, placement: Placement, setting: WorkerSetting) -> None:
        self.slot = slot
        self.placement = placement
        self.core: CoreSide | None = None
        self.coordinator: ActorHandle = None
        self._setting = setting
        self._engines = WorkerEngines(f"hybrid-{slot}", placement, setting.config, setting.starter)
        self._ranks: list[ActorHandle] = []

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
        """Its trajectories go on on other engines. Also after an admission that failed at one of several engines."""
        deadline_s = self._setting.config.elastic.drain_s
        for slot in self._engines.held:
            answer = self.coordinator.retire_engine.remote(slot.engine_id, deadline_s)
            await answer_of_fleet(answer, slot.engine_id, self._setting.config.departure_s + GRACE_S)

    async def admit(self) -> None:
        """Serve with the newest weights; each engine has scored the canary before."""
        deadline_s = self._setting.config.admission_s + GRACE_S
        answers = [(engine.engine_id, self.coordinator.admit_engine.remote(engine)) for engine in self._engines.started]
        await asyncio.gather(*(answer_of_fleet(answer, engine_id, deadline_s) for engine_id, answer in answers))

    async def stop_engine(self) -> None:
        """Its devices are free for the replica; `elastic.idle_engine` says what becomes of its processes."""
        await self._engines.rest()

    async def start_engine(self) -> None:
        await self._engines.start()

    async def start_first(self) -> list[StartedEngine]:
        """When the run starts: the coordinator takes these engines as they are."""
        await self.start_engine()
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
            hosts = await self._of_ranks("its host", lambda rank: rank.host.remote(self._setting.loopback), deadline_s)
            rendezvous = self._ranks[0].rendezvous.remote(hosts[0])
            host, port = await reply(self._name, "a port of rank 0", rendezvous, deadline_s)
            specs = [
                replica_spec(config, self._setting.model_folder, rank=number, host=host, port=port)
                for number in range(len(self._ranks))
            ]
            of_rank = dict(zip(self._ranks, specs, strict=True))
            elastic, hybrid = self.core.elastic, self._hybrid_spec()
            await self._of_ranks("its start", lambda rank: rank.start.remote(of_rank[rank], elastic, hybrid), deadline_s)
        except DeadlineError as error:
            raise ResourceError(f"{self._name} did not start within training.start_deadline_s: {error}") from None
        except (LibraError, RayError) as error:
            raise ResourceError(f"{self._name} did not start: {first_line(error)}") from error

    async def stop_replica(self) -> None:
        """Its connection ends with it; the core goes on without."""
        ranks, self._ranks = self._ranks, []
        stop = f"{self._name} to stop, before it is killed,"
        await asyncio.gather(*(quiet(stop, rank.close.remote(), STOP_DEADLINE_S) for rank in ranks))
        self.kill_replica(ranks)

    def kill_replica(self, ranks: list[ActorHandle] | None = None) -> None:
        """Without asking it anything."""
        for rank in self._ranks if ranks is None else ranks:
            ray.kill(rank, no_restart=True)
        if ranks is None:
            self._ranks = []

    async def join(self, epoch: int) -> "JoinReport":
        """Returns when the core counts on it; the core's own steps decide how long that takes.

        The core may count on it from the call on, whatever becomes of the call.
        """
        deadline_s = self._setting.config.elastic.join_s
        joins = {rank: rank.join.remote(epoch, deadline_s) for rank in self._ranks}
        try:
            reports = await self._of_ranks("the core to take it in", lambda rank: joins[rank], deadline_s + GRACE_S)
        except DeadlineError as error:
            raise DeadlineError(f"{self._name} did not join within elastic.join_s = {deadline_s:.0f} s: {error}") from None
        except (LibraError, RayError) as error:
            raise ResourceError(f"{self._name} did not join: {first_line(error)}") from error
        return reports[0]

    async def ask_to_leave(self) -> None:
        """The core leaves it out of the steps after the one in work."""
        await self._order("leave", lambda rank: rank.leave.remote())

    async def cut(self) -> None:
        """Out at once."""
        await self._order("cut its connection", lambda rank: rank.cut.remote())

    @property
    def _name(self) -> str:
        return f"replica hybrid-{self.slot}"

    async def _of_ranks(self, what: str, call: Callable[[ActorHandle], Any], deadline_s: float) -> list[Any]:
        """Of every rank, asked at once. Raises as `reply` does."""
        answers = (reply(f"rank {i} of {self._name}", what, call(rank), deadline_s) for i, rank in enumerate(self._ranks))
        return list(await asyncio.gather(*answers))

    async def _order(self, what: str, call: Callable[[ActorHandle], Any]) -> None:
        """A rank that is gone has done it.

        Raises:
            DeadlineError: one did not.
        """
        done = await asyncio.gather(*(quiet(f"{self._name} to {what}", call(rank), _CONTROL_S) for rank in self._ranks))
        if not all(done):
            raise DeadlineError(f"{self._name} did not {what} within {_CONTROL_S:.0f} s")

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
