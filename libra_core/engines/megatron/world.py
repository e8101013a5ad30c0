"""The process group of the training world and this rank's place in it."""

from dataclasses import dataclass
from datetime import timedelta
from math import ceil

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.errors import ConfigError, ResourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronWorld:
    """Where this rank stands. Ranks count TP fastest, then DP, then PP."""

    rank: int
    dp_rank: int
    dp_size: int
    tp_rank: int
    tp_size: int
    last_stage: bool
    device: torch.device

    @property
    def reports(self) -> bool:
        """One rank per data-parallel replica that holds the replica's losses."""
        return self.last_stage and self.tp_rank == 0

    def sum_and_max(self, sums: list[float], maxima: list[float]) -> tuple[list[float], list[float]]:
        """Element-wise over all ranks; every rank returns the same."""
        total = torch.tensor(sums, dtype=torch.float64, device=self.device)
        peak = torch.tensor(maxima, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        return total.tolist(), peak.tolist()


def open_world(spec: TrainerSpec) -> MegatronWorld:
    """Join the other ranks; blocks until all are there.

    Raises:
        ConfigError: when the world size is not tp · pp · dp.
        ResourceError: when the port is taken or the others do not come within `collective_timeout_s`.
    """
    layout = spec.training.layout
    if spec.world_size != layout.world_size:
        raise ConfigError(
            f"the training world has {spec.world_size} ranks, but training.layout needs tp · pp · dp = {layout.world_size}"
        )
    device = _select_device(spec)
    timeout_s = spec.training.collective_timeout_s
    try:
        dist.init_process_group(
            "nccl" if spec.device == "cuda" else "gloo",
            init_method=f"tcp://{spec.master_addr}:{spec.master_port}",
            rank=spec.rank,
            world_size=spec.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
    except (RuntimeError, dist.DistError) as error:
        raise ResourceError(
            f"trainer rank {spec.rank} of {spec.world_size} could not join {spec.master_addr}:{spec.master_port} "
            f"within {timeout_s:.0f} s ({str(error).splitlines()[0]}); is the port in use, or a rank missing?"
        ) from error
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        distributed_timeout_minutes=max(1, ceil(timeout_s / 60)),
    )
    tensor_parallel.model_parallel_cuda_manual_seed(spec.seed)
    return MegatronWorld(
        rank=spec.rank,
        dp_rank=parallel_state.get_data_parallel_rank(),
        dp_size=parallel_state.get_data_parallel_world_size(),
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        tp_size=layout.tp,
        last_stage=parallel_state.is_pipeline_last_stage(),
        device=device,
    )


def close_world() -> None:
    """Leave without waiting for the others; safe to call twice."""
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def _select_device(spec: TrainerSpec) -> torch.device:
    if spec.device == "cpu":
        return torch.device("cpu")
    index = spec.rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
