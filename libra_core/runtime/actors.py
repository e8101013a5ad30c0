"""Thin Ray actors around an engine and a trainer rank; heavy libraries are imported inside the actor's process."""

import socket
from typing import TYPE_CHECKING, Any, Literal

from libra_core.types.batch import TrainingBatch
from libra_core.types.ids import PolicyVersion
from libra_core.types.reports import EnginePublication, EngineStats, UpdateReport
from libra_core.types.trajectory import GeneratedTurn, GenerationRequest

if TYPE_CHECKING:
    from libra_core.engines.megatron.spec import TrainerSpec
    from libra_core.engines.vllm.spec import EngineFacts, EngineSpec
    from libra_core.engines.weight_source import WeightSource


class EngineActor:
    """One vLLM engine. Async: calls overlap in one event loop; vLLM's own processes are children of this one."""

    def __init__(self, spec: "EngineSpec") -> None:
        from libra_core.engines.vllm.engine import VllmEngine

        self._engine = VllmEngine(spec)

    async def start(self) -> "EngineFacts":
        return await self._engine.start()

    async def generate(self, request: GenerationRequest) -> GeneratedTurn:
        return await self._engine.generate(request)

    async def update_weights(
        self, source: "WeightSource", version: PolicyVersion, in_flight: Literal["keep", "abort"], recompute_kv: bool
    ) -> EnginePublication:
        return await self._engine.update_weights(source, version, in_flight=in_flight, recompute_kv=recompute_kv)

    async def open_transport(
        self, kind: Literal["file", "broadcast"], host: str, port: int, rank_offset: int, world_size: int
    ) -> None:
        await self._engine.open_transport(kind, host, port, rank_offset, world_size)

    async def score(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        return await self._engine.score(token_ids)

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def stop(self) -> None:
        await self._engine.stop()


class TrainerActor:
    """One rank of the Megatron world. Synchronous: one call at a time; all ranks must get the same calls in the same order."""

    def __init__(self) -> None:
        self._trainer: Any = None

    def rendezvous(self, loopback: bool) -> tuple[str, int]:
        """Address and a free port of this rank's host; asked of rank 0 only."""
        import ray

        host = "127.0.0.1" if loopback else ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, probe.getsockname()[1]

    def start(self, spec: "TrainerSpec") -> int:
        """Build the model from the HF folder; returns the policy version."""
        from libra_core.engines.megatron.trainer import MegatronTrainer

        self._trainer = MegatronTrainer(spec)
        return self._trainer.policy_version

    def update(self, batch: TrainingBatch) -> UpdateReport:
        return self._trainer.update(batch)

    def score_tokens(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        return self._trainer.score_tokens(token_ids)

    def export_file(self, path: str) -> Any:
        return self._trainer.export_file(path)

    def export_metadata(self) -> Any:
        return self._trainer.export_metadata()

    def open_broadcast(self, host: str, port: int, world_size: int) -> None:
        self._trainer.open_broadcast(host, port, world_size)

    def broadcast_weights(self) -> Any:
        return self._trainer.broadcast_weights()

    def export_hf_folder(self, path: str) -> None:
        self._trainer.export_hf_folder(path)

    def save(self, folder: str, extra: dict[str, Any]) -> None:
        self._trainer.save(folder, extra)

    def load(self, folder: str) -> dict[str, Any]:
        return self._trainer.load(folder)

    def digest(self) -> str:
        return self._trainer.digest()

    def version(self) -> int:
        return self._trainer.policy_version

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
