"""KV hand-over through a folder in shared memory, as a connector of vLLM's `KVConnectorBase_V1` interface.

Loads happen within the step that needs them (vLLM cannot clear its caches for a publication while a load is under way beside
it), so other requests of the engine wait for the copy.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.kv_cache_interface import FullAttentionSpec

from libra_core.engines.vllm.kv_folder import KvFolder
from libra_core.engines.vllm.kv_jobs import KvJobs, KvReport
from libra_core.engines.vllm.kv_scheduler_half import SchedulerHalf
from libra_core.engines.vllm.kv_worker_half import WorkerHalf

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class SharedFolderConnector(KVConnectorBase_V1):
    """vLLM makes one in the engine core and one in every worker; each has its half and passes calls on."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options: dict[str, Any] = vllm_config.kv_transfer_config.kv_connector_extra_config
        folder = KvFolder(Path(options["folder"]), _layout(vllm_config, kv_cache_config), options["max_bytes"])
        common = {
            "block_size": vllm_config.cache_config.block_size,
            "degree": vllm_config.parallel_config.tensor_parallel_size,
            "total_heads": vllm_config.model_config.get_total_num_kv_heads(),
        }
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        if role is KVConnectorRole.SCHEDULER:
            algorithm = get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)
            hasher = get_request_block_hasher(common["block_size"], algorithm)
            self._scheduler = SchedulerHalf(folder, hasher=hasher, **common)
        else:
            self._worker = WorkerHalf(folder, rank=get_tensor_model_parallel_rank(), version=options["version"], **common)

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is lost is a later re-prefill, nothing more."""
        return False

    @property
    def worker(self) -> WorkerHalf:
        assert self._worker is not None, "asked of the scheduler's half"
        return self._worker

    @property
    def scheduler(self) -> SchedulerHalf:
        assert self._scheduler is not None, "asked of a worker's half"
        return self._scheduler

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.worker.load(self._jobs().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are over before the forward pass begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Whole blocks are saved after the forward pass, by `wait_for_save`."""

    def wait_for_save(self) -> None:
        self.worker.save(self._jobs().saves)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.bad_blocks()

    def build_connector_worker_meta(self) -> KvReport | None:
        return self.worker.report()

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        self.scheduler.use(gpu_block_pool)

    def on_new_request(self, request: "Request") -> None:
        self.scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.scheduler.match(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        self.scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KvJobs:
        return self.scheduler.jobs()

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, KvReport):
            self.scheduler.hear(report)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return False, self.scheduler.finished(request)

    def reset_cache(self) -> bool:
        """Blocks are named by version and looked up in the prefix cache, which is empty by now: nothing to forget."""
        return True

    def _jobs(self) -> KvJobs:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, KvJobs)
        return jobs


def tell_weights(version: int) -> None:
    """Called in a worker once it computes with the weights of that version."""
    if has_kv_transfer_group():
        connector = get_kv_transfer_group()
        if isinstance(connector, SharedFolderConnector):
            connector.worker.weights_replaced(version)


def _layout(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> str:
    """Hash of all that the bytes of a block depend on beside tokens and weights. Raises `ValueError` for other attention."""
    groups = kv_cache_config.kv_cache_groups
    spec = groups[0].kv_cache_spec
    if len(groups) != 1 or type(spec) is not FullAttentionSpec:
        raise ValueError(
            "rollout.kv_transfer = shared_folder hands over plain attention alone, with one KV cache group; this model has "
            f"{len(groups)} of {type(spec).__name__}; choose one of vLLM's connectors"
        )
    facts = {
        "layers": list(groups[0].layer_names),
        "heads": vllm_config.model_config.get_total_num_kv_heads(),
        "head_size": spec.head_size,
        "dtype": str(spec.dtype),
        "block": spec.block_size,
        "device": vllm_config.device_config.device_type,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
