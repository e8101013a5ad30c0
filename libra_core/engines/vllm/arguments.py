"""Libra's values in vLLM's words."""

import zlib
from typing import Any

from vllm import SamplingParams
from vllm.config import WeightTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind

from libra_core.engines.vllm.kv_transfer import transfer_config
from libra_core.engines.vllm.lifetime import HostProcess
from libra_core.engines.vllm.spec import EngineSpec
from libra_core.types.trajectory import GenerationRequest

_WORKER_MODULE = "libra_core.engines.vllm.weight_transfer"
_BACKEND = "libra"


def engine_arguments(spec: EngineSpec) -> AsyncEngineArgs:
    """Call it in the process that will host the engine: that process is named to the workers."""
    memory = (
        {"kv_cache_memory_bytes": spec.kv_cache_mib << 20}
        if spec.device == "cpu"
        else {"gpu_memory_utilization": spec.gpu_memory_utilization}
    )
    return AsyncEngineArgs(
        model=spec.model_path,
        dtype=spec.dtype,
        seed=_engine_seed(spec),
        tensor_parallel_size=spec.tp,
        distributed_executor_backend="mp" if spec.tp > 1 else None,  # inside a Ray actor vLLM would ask Ray for its workers
        max_model_len=spec.max_model_len,
        max_num_seqs=spec.max_num_seqs,
        block_size=spec.block_size,
        enforce_eager=spec.enforce_eager,
        enable_prefix_caching=True,
        scheduling_policy="priority",
        skip_tokenizer_init=True,
        generation_config="vllm",  # the model folder's own defaults would change the sampling
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        use_tqdm_on_load=False,
        worker_extension_cls=f"{_WORKER_MODULE}.WorkerExtension",
        weight_transfer_config=WeightTransferConfig(backend=_BACKEND),
        additional_config=HostProcess.current(),
        kv_transfer_config=transfer_config(spec),
        enable_sleep_mode=spec.sleep_mode and spec.device == "cuda",
        **memory,
    )


def _engine_seed(spec: EngineSpec) -> int:
    """Engines of one run must not draw the same numbers for the same prompts."""
    return zlib.crc32(f"{spec.seed}/{spec.engine_id}".encode())


def sampling_parameters(request: GenerationRequest, kv_parameters: dict[str, Any] | None) -> SamplingParams:
    """Only `stop_token_ids` end a turn; the model's own end token does not."""
    return SamplingParams(
        max_tokens=request.max_new_tokens,
        temperature=request.temperature,
        stop_token_ids=list(request.stop_token_ids),
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=None if kv_parameters is None else {"kv_transfer_params": kv_parameters},
    )


def scoring_parameters() -> SamplingParams:
    return SamplingParams(
        max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False, ignore_eos=True, skip_reading_prefix_cache=True
    )
