"""What the two halves of the shared-folder connector tell each other, once per engine step."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from libra_core.engines.vllm.kv_folder import BlockAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """Fill KV blocks before this step's forward pass."""

    request_id: str
    blocks: tuple[tuple[int, BlockAddress], ...]
    """Id in the engine's KV cache, and where its content lies; in the order of the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveJob:
    """Copy KV blocks after this step's forward pass."""

    request_id: str
    blocks: tuple[tuple[int, BlockAddress], ...]


@dataclass
class KvJobs(KVConnectorMetadata):
    """Scheduler to workers."""

    loads: list[LoadJob] = field(default_factory=list[LoadJob])
    saves: list[SaveJob] = field(default_factory=list[SaveJob])


@dataclass
class KvReport(KVConnectorWorkerMetadata):
    """Workers to scheduler. Every rank reports every save once, when its files are written."""

    saved: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Request and number of leading blocks that are in the folder."""
    failed: dict[str, int] = field(default_factory=dict[str, int])
    """Requests whose load came to nothing from some block on, and the number of blocks from there."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "KvReport":
        assert isinstance(other, KvReport)
        failed = {name: max(self.failed.get(name, 0), other.failed.get(name, 0)) for name in self.failed | other.failed}
        return KvReport(saved=self.saved + other.saved, failed=failed)
