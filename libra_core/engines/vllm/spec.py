"""What an engine is, and the environment its process must be started with. Imports no vllm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from libra_core.errors import ConfigError
from libra_core.types.ids import EngineId, PolicyVersion

_CPU_BLOCK_MULTIPLE = 32
_FIRST_VERSION = PolicyVersion(0)


SHARED_FOLDER = "shared_folder"
"""Libra's own connector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransferSpec:
    """Which connector hands KV over between engines."""

    connector: str
    """`SHARED_FOLDER`, or the name of a connector in vLLM or in `module`."""
    module: str | None = None
    options: Mapping[str, Any]
    """vLLM's `kv_connector_extra_config`. For `SHARED_FOLDER`: `folder`, which one run alone uses, and `max_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One vLLM instance. Raises `ConfigError` for values vLLM would refuse minutes later."""

    engine_id: EngineId
    model_path: str
    tp: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = 0
    initial_version: PolicyVersion = _FIRST_VERSION
    """Version of the weights in `model_path`."""
    max_num_seqs: int = 128
    max_model_len: int = 512
    kv_cache_mib: int = 256
    """CPU only, per rank."""
    gpu_memory_utilization: float = 0.85
    """CUDA only."""
    block_size: int = 32
    enforce_eager: bool = True
    threads: int = 1
    """OpenMP threads per rank (CPU only)."""
    start_deadline_s: float = 300.0
    kv_transfer: KvTransferSpec | None = None
    sleep_mode: bool = False
    """It may be put to sleep: on CUDA its memory comes from an allocator that can give it back."""

    def __post_init__(self) -> None:
        if self.device == "cpu" and self.block_size % _CPU_BLOCK_MULTIPLE:
            raise ConfigError(
                f"rollout.block_size = {self.block_size} is not a multiple of {_CPU_BLOCK_MULTIPLE}, which vLLM's CPU attention "
                f"needs; use {_CPU_BLOCK_MULTIPLE}"
            )
        if min(self.tp, self.threads, self.max_num_seqs, self.max_model_len) < 1:
            raise ConfigError(f"{self.engine_id}: tp, threads, max_num_seqs and max_model_len must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """A started engine."""

    kv_tokens: int
    """Capacity of the KV cache, over all requests."""
    start_s: float
    """Imports included, when the engine is the first user of vLLM in its process."""
    pids: tuple[int, ...]
    """Engine core and workers; they die with the hosting process."""


def process_environment(spec: EngineSpec) -> dict[str, str]:
    """Variables to set before the hosting process starts: vLLM and OpenMP read them at import.

    `VLLM_CPU_KVCACHE_SPACE` must not be set at all (it overrides `kv_cache_mib` in whole GiB).
    """
    common = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(spec.start_deadline_s)),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return common if spec.device == "cuda" else common | _cpu_environment(spec)


def _cpu_environment(spec: EngineSpec) -> dict[str, str]:
    # `auto` would bind every engine of the host to the same cores.
    variables = {"OMP_NUM_THREADS": str(spec.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if spec.tp == 1:
        # Runs the only worker inside the engine core: one process and ten seconds of imports less.
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return variables
