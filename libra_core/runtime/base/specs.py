"""From the configuration to what one engine or one trainer rank needs to know, and the environment of its process."""

import getpass
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import ray

from libra_core.config import LibraConfig
from libra_core.config.rollout import KvTransferConfig
from libra_core.elastic.spec import ElasticSpec
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.vllm.spec import SHARED_FOLDER, EngineSpec, KvTransferSpec, process_environment
from libra_core.runtime.base.remains import shared_memory
from libra_core.types.ids import EngineId


def device_of(config: LibraConfig) -> Literal["cpu", "cuda"]:
    return "cuda" if config.backend.kind == "gpu" else "cpu"


def engine_spec(
    config: LibraConfig, model_folder: str, *, engine_id: EngineId, tp: int, scratch: str | None, sleep_mode: bool = False
) -> tuple[EngineSpec, dict[str, str]]:
    """`scratch` is a folder on the engine's host that goes with the run; vLLM's sockets and files would else stay in /tmp."""
    rollout = config.rollout
    spec = EngineSpec(
        engine_id=engine_id,
        model_path=str(Path(model_folder).resolve()),
        tp=tp,
        dtype=config.model.dtype,
        device=device_of(config),
        seed=config.seed,
        max_num_seqs=rollout.max_num_seqs,
        max_model_len=rollout.max_context_tokens + 1,
        kv_cache_mib=rollout.kv_cache_mib,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        block_size=rollout.block_size,
        enforce_eager=rollout.enforce_eager,
        threads=config.backend.threads_per_process,
        sleep_mode=sleep_mode,
        start_deadline_s=rollout.engine_start_deadline_s,
        kv_transfer=_kv_transfer(rollout.kv_transfer),
    )
    environment = process_environment(spec)
    if scratch is not None:
        # What torch compiles is kept for other runs.
        compiled = str(Path(tempfile.gettempdir()) / f"torchinductor_{_user()}")
        environment |= {"VLLM_RPC_BASE_PATH": scratch, "TMPDIR": scratch, "TORCHINDUCTOR_CACHE_DIR": compiled}
    return spec, environment


def _user() -> str:
    """As torch names its folder; a container may run under a number that has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid_{os.getuid()}"


def elastic_spec(config: LibraConfig, secret: bytes) -> ElasticSpec | None:
    """The core's side channel; None without hybrid replicas. Its host is set where the rank is known to run."""
    elastic = config.elastic
    if not elastic.hybrid_replicas:
        return None
    return ElasticSpec(
        secret=secret,
        slots=elastic.hybrid_replicas,
        contribution_s=elastic.contribution_s,
        check_every_steps=elastic.check_every_steps,
    )


def replica_spec(config: LibraConfig, model_folder: str, *, rank: int, host: str, port: int) -> TrainerSpec:
    """One rank of a hybrid replica: the core's tp and pp, alone."""
    layout = config.training.layout.model_copy(update={"dp": 1, "distributed_optimizer": False})
    spec = trainer_spec(config, model_folder, rank=rank, world_size=layout.world_size, host=host, port=port)
    return replace(spec, training=config.training.model_copy(update={"layout": layout}))


def _kv_transfer(asked: KvTransferConfig) -> KvTransferSpec | None:
    if asked.connector is None:
        return None
    options = asked.options
    if asked.connector == SHARED_FOLDER:
        options = {"folder": str(shared_memory(ray.get_runtime_context().namespace) / "kv"), "max_bytes": asked.max_mib << 20}
    return KvTransferSpec(connector=asked.connector, module=asked.module, options=options)


def trainer_spec(config: LibraConfig, model_folder: str, *, rank: int, world_size: int, host: str, port: int) -> TrainerSpec:
    return TrainerSpec(
        model_path=str(Path(model_folder).resolve()),
        dtype=config.model.dtype,
        device=device_of(config),
        rank=rank,
        world_size=world_size,
        master_addr=host,
        master_port=port,
        seed=config.seed,
        training=config.training,
        temperature=config.rollout.temperature,
        max_new_tokens=config.rollout.max_new_tokens,
    )


def trainer_env(config: LibraConfig, loopback: bool) -> dict[str, str]:
    """Environment of a trainer process; too many OpenMP threads on few cores cost a factor of 20."""
    env = {"OMP_NUM_THREADS": str(config.backend.threads_per_process), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    if config.backend.kind == "gpu":
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if loopback:
        env["GLOO_SOCKET_IFNAME"] = "lo"
    return env
