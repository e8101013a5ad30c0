"""Thin Ray actors around an engine and a trainer rank; heavy libraries are imported inside the actor's process."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from libra_core.runtime.base.placement import Whereabouts, free_port, whereabouts
from libra_core.runtime.base.rpc import ActorHandle
from libra_core.types.batch import AccumulationReport, StepAccount, TrainingSequence
from libra_core.types.ids import BatchId, EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication, EngineStats, UpdateReport
from libra_core.types.trace import TraceSpan
from libra_core.types.trajectory import GeneratedTurn, GenerationRequest

if TYPE_CHECKING:
    from libra_core.elastic.spec import Address
    from libra_core.engines.megatron.spec import TrainerSpec
    from libra_core.engines.vllm.spec import EngineFacts, EngineSpec
    from libra_core.engines.weight_source import WeightSource

_T = TypeVar("_T")
_KEEP_SPANS = 10_000


class EngineActor:
    """One vLLM engine. Async: calls overlap in one event loop; vLLM's own processes are children of this one."""

    def __init__(self, spec: "EngineSpec") -> None:
        from libra_core.engines.vllm.engine import VllmEngine

        self._engine = VllmEngine(spec)

    async def start(self) -> "EngineFacts":
        return await self._engine.start()

    async def generate(self, request: GenerationRequest) -> GeneratedTurn:
        return await self._engine.generate(request)

    async def offer_kv(self, request_id: str, token_ids: tuple[int, ...], version: PolicyVersion) -> "Mapping[str, Any] | None":
        return await self._engine.offer_kv(request_id, token_ids, version)

    async def update_weights(
        self, source: "WeightSource", version: PolicyVersion, in_flight: Literal["keep", "abort"], recompute_kv: bool
    ) -> EnginePublication:
        return await self._engine.update_weights(source, version, in_flight=in_flight, recompute_kv=recompute_kv)

    async def hold(self) -> None:
        await self._engine.hold()

    async def open_transport(
        self, kind: Literal["file", "broadcast"], host: str, port: int, rank_offset: int, world_size: int, timeout_s: float
    ) -> None:
        await self._engine.open_transport(kind, host, port, rank_offset, world_size, timeout_s)

    async def ping(self) -> None:
        await self._engine.ping()

    async def score(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        return await self._engine.score(token_ids)

    async def abort_all(self) -> None:
        await self._engine.abort_all()

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def whereabouts(self) -> Whereabouts:
        return whereabouts()

    async def sleep(self) -> Whereabouts:
        """Returns which devices are free now."""
        await self._engine.sleep()
        return whereabouts()

    async def wake(self) -> None:
        await self._engine.wake()

    async def stop(self) -> None:
        await self._engine.stop()


class TrainerActor:
    """One rank of the Megatron world. Synchronous: one call at a time; all ranks must get the same calls in the same order."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._spans: deque[TraceSpan] = deque(maxlen=_KEEP_SPANS)

    def spans(self, since_s: float) -> list[TraceSpan]:
        """What this rank worked at, since a unix time."""
        return [span for span in self._spans if span.end_s > since_s]

    def _timed(self, name: str, work: Callable[[], _T]) -> _T:
        start_s = time.time()
        try:
            return work()
        finally:
            self._spans.append(TraceSpan(name=name, lane="trainer", start_s=start_s, end_s=time.time()))

    def rendezvous(self, loopback: bool) -> tuple[str, int]:
        """Address and a free port of this rank's host; asked of rank 0 only."""
        return free_port(self.host(loopback))

    def start(self, spec: "TrainerSpec") -> int:
        """Build the model from the HF folder; returns the policy version."""
        from libra_core.engines.megatron.trainer import MegatronTrainer

        self._trainer = MegatronTrainer(spec)
        return self._trainer.policy_version

    def begin_step(self, batch_id: BatchId, expected_version: PolicyVersion) -> UpdateReport | None:
        return self._trainer.begin_step(batch_id, expected_version)

    def accumulate(self, sequences: tuple[TrainingSequence, ...]) -> AccumulationReport:
        return self._timed("accumulate", lambda: self._trainer.accumulate(sequences))

    def settle_step(self) -> tuple[int, ...]:
        """Numbers of the sequences that were lost with a hybrid replica. Waiting for replicas is no work: no span."""
        return self._trainer.settle_step()

    def active_replicas(self) -> dict[int, int]:
        """Slot to epoch of the hybrid replicas that take part in the step that is open or comes next."""
        return dict(self._trainer.exchange.active) if self._trainer.exchange is not None else {}

    def account(self) -> StepAccount | None:
        return self._trainer.account

    def exchange_address(self) -> "Address | None":
        """Where the side channel of this rank listens."""
        return self._trainer.exchange.address if self._trainer.exchange is not None else None

    def host(self, loopback: bool) -> str:
        """Address of this rank's host."""
        import ray

        return "127.0.0.1" if loopback else ray.util.get_node_ip_address()

    def whereabouts(self) -> Whereabouts:
        return whereabouts()

    def finish_step(self) -> UpdateReport:
        return self._timed("optimizer step", lambda: self._trainer.finish_step())

    def discard_step(self) -> None:
        self._trainer.discard_step()

    def score_tokens(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        return self._timed("canary", lambda: self._trainer.score_tokens(token_ids))

    def export_file(self, path: str) -> Any:
        return self._timed("export", lambda: self._trainer.export_file(path))

    def export_metadata(self) -> Any:
        return self._trainer.export_metadata()

    def open_broadcast(self, host: str, port: int, world_size: int, timeout_s: float) -> None:
        self._trainer.open_broadcast(host, port, world_size, timeout_s)

    def broadcast_weights(self) -> Any:
        return self._timed("broadcast", lambda: self._trainer.broadcast_weights())

    def export_hf_folder(self, path: str) -> None:
        self._trainer.export_hf_folder(path)

    def save(self, folder: str, extra: dict[str, Any]) -> None:
        self._timed("checkpoint", lambda: self._trainer.save(folder, extra))

    def load(self, folder: str) -> dict[str, Any]:
        return self._trainer.load(folder)

    def digest(self) -> str:
        return self._trainer.digest()

    def version(self) -> int:
        return self._trainer.policy_version

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()


if TYPE_CHECKING:
    from libra_core.elastic.spec import ElasticSpec, HybridSpec
    from libra_core.engines.megatron.hybrid import JoinReport
    from libra_core.engines.megatron.spec import TrainerSpec


class ReplicaActor:
    """Synchronous: one call at a time, so that a step's calls wait until a join has ended.

    The controller calls `start`, `join`, `leave`, `cut` and `close`; the flow's process calls the parts of a step, on every rank
    in the same order. Whatever fails here cuts the connection: the core is told at once, instead of waiting for a gradient.
    """

    def __init__(self, lent: Whereabouts | None) -> None:
        """`lent`: the device of a sleeping engine that this rank uses; None where it has one of its own."""
        self._lent = lent
        self._trainer: Any = None
        self._replica: Any = None

    def rendezvous(self, host: str) -> tuple[str, int]:
        """A free port of this rank's host; asked of rank 0 only."""
        return free_port(host)

    def host(self, loopback: bool) -> str:
        import ray

        return "127.0.0.1" if loopback else ray.util.get_node_ip_address()

    def whereabouts(self) -> Whereabouts:
        return whereabouts(self._lent)

    def start(self, spec: "TrainerSpec", elastic: "ElasticSpec", hybrid: "HybridSpec") -> None:
        """Build the replica's own world; it holds the start weights until it joins."""
        from libra_core.engines.megatron.hybrid import HybridReplica
        from libra_core.engines.megatron.trainer import MegatronTrainer

        self._trainer = MegatronTrainer(spec)
        self._replica = HybridReplica(self._trainer, elastic, hybrid)

    def join(self, epoch: int, deadline_s: float) -> "JoinReport":
        return self._replica.join(epoch, deadline_s=deadline_s)

    def begin_step(self, batch_id: BatchId) -> None:
        self._guarded(lambda: self._replica.begin_step(batch_id))

    def accumulate(self, sequences: tuple[TrainingSequence, ...]) -> None:
        self._guarded(lambda: self._replica.accumulate(sequences))

    def finish_step(self, deadline_s: float) -> None:
        """Contribute, then apply what the core made of the step."""

        def finish() -> None:
            self._replica.contribute()
            self._replica.follow(deadline_s=deadline_s)

        self._guarded(finish)

    def leave(self) -> None:
        """Ask to be left out of the steps after the one in work."""
        self._replica.leave()

    def cut(self) -> None:
        """Leave without asking."""
        self._replica.close()

    def digest(self) -> str:
        return self._trainer.digest()

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
        if self._trainer is not None:
            self._trainer.close()

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:
            self._replica.close()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedEngine:
    """An engine that serves."""

    engine_id: EngineId
    tp: int
    kv_tokens: int
    handle: ActorHandle
