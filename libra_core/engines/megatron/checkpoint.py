"""Sharded checkpoints: Megatron's dist checkpoint, our progress beside it, and a marker that vouches for every file."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, tensor_parallel
from safetensors.torch import load_file, save_file

from libra_core.engines.checkpoint_files import PARTIAL, PROGRESS, RNG, damage_of, foreign_model, put_in_place, write_marker
from libra_core.engines.megatron import shard_writer
from libra_core.engines.megatron.cpu_shim import repair_distributed_optimizer
from libra_core.engines.megatron.model import TrainedModel
from libra_core.engines.megatron.world import MegatronWorld
from libra_core.errors import CheckpointError
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.reports import UpdateReport

_SHARDS = "shards"
_OPTIMIZER_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}
"""Megatron's default format cannot be loaded in another layout, and raises on flattened ranges in 0.16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyProgress:
    """How far the policy is."""

    version: PolicyVersion
    adam_steps: int = 0
    """Below `version` by the number of skipped batches."""
    batch_id: BatchId | None = None
    """The batch applied last, with its report: what makes a repeated update harmless."""
    report: UpdateReport | None = None


def save(folder: Path, model: TrainedModel, progress: PolicyProgress, extra: Mapping[str, Any], world: MegatronWorld) -> None:
    """Collective. Everything is written beside `folder` and renamed last: a killed save leaves nothing under its name."""
    partial = folder.with_name(folder.name + PARTIAL)
    if world.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / _SHARDS).mkdir(parents=True)
    dist.barrier()
    fill_adam_state(model)
    shard_writer.install()
    dist_checkpointing.save(_sharded_state(model, is_loading=False), str(partial / _SHARDS))
    rng = _gather_rng()
    dist.barrier()
    if world.rank == 0:
        save_file(rng, partial / RNG)
        content = {"progress": asdict(progress), "extra": dict(extra), "model": asdict(model.facts)}
        (partial / PROGRESS).write_text(json.dumps(content))
        write_marker(partial)
        put_in_place(partial, folder)
    dist.barrier()


def load(folder: Path, model: TrainedModel, world: MegatronWorld) -> tuple[PolicyProgress, dict[str, Any]]:
    """Collective. Rank 0 checks every file first and all ranks hear its verdict, so that none is left waiting.

    Raises:
        CheckpointError: when the checkpoint is incomplete, damaged or of another model.
    """
    verdict: list[str | None] = [damage_of(folder) or foreign_model(folder, model.facts) if world.rank == 0 else None]
    dist.broadcast_object_list(verdict, src=0)
    if verdict[0] is not None:
        raise CheckpointError(verdict[0])
    progress, extra = read_progress(folder)
    fill_adam_state(model)
    repair_distributed_optimizer()
    state = dist_checkpointing.load(_sharded_state(model, is_loading=True), str(folder / _SHARDS))
    model.module.load_state_dict(state["model"], strict=False)
    _restore_zero_step(state["optimizer"])
    model.optimizer.load_state_dict(state["optimizer"])
    set_adam_steps(model, progress.adam_steps)
    _restore_rng(load_file(folder / RNG))
    return progress, extra


def read_progress(folder: Path) -> tuple[PolicyProgress, dict[str, Any]]:
    """How far the policy of a whole checkpoint is, and what was saved beside it. Raises `CheckpointError`."""
    try:
        content = json.loads((folder / PROGRESS).read_text())
        saved = content["progress"]
        report = UpdateReport(**saved["report"]) if saved["report"] else None
        progress = PolicyProgress(
            version=saved["version"], adam_steps=saved["adam_steps"], batch_id=saved["batch_id"], report=report
        )
        return progress, dict(content["extra"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / PROGRESS} is not as this version of Libra writes it ({error}); resume with the version that did"
        ) from None


def _sharded_state(model: TrainedModel, *, is_loading: bool) -> dict[str, Any]:
    weights = model.module.sharded_state_dict()
    optimizer = model.optimizer.sharded_state_dict(
        model.module.sharded_state_dict(), is_loading=is_loading, metadata=_OPTIMIZER_METADATA
    )
    return {"model": weights, "optimizer": optimizer}


def _adams(model: TrainedModel) -> list[torch.optim.Optimizer]:
    """Torch's Adam under Megatron's wrappers; none where Transformer Engine's fused Adam, which needs no repair, is used."""
    wrappers = getattr(model.optimizer, "chained_optimizers", [model.optimizer])
    return [wrapper.optimizer for wrapper in wrappers if isinstance(wrapper.optimizer, torch.optim.Adam | torch.optim.AdamW)]


def fill_adam_state(model: TrainedModel) -> None:
    """Megatron asserts on an Adam that has not stepped yet; zeros are what its first step would start from."""
    for adam in _adams(model):
        for group in adam.param_groups:
            for parameter in group["params"]:
                if not adam.state[parameter]:
                    zeros = torch.zeros_like(parameter)
                    adam.state[parameter].update(step=torch.tensor(0.0), exp_avg=zeros, exp_avg_sq=zeros.clone())


def _restore_zero_step(state: dict[str, Any]) -> None:
    """Megatron does not save a step of 0, which torch then misses (KeyError); `set_adam_steps` sets the real one."""
    inner = state.get("optimizer", state)
    if "state" in inner:
        inner["state"].setdefault("common_step", torch.tensor(0.0))


def set_adam_steps(model: TrainedModel, steps: int) -> None:
    """One tensor per parameter: Megatron hands all of them the same one, which Adam would then count up once per parameter."""
    for adam in _adams(model):
        for state in adam.state.values():
            state["step"] = torch.tensor(float(steps))


def _gather_rng() -> dict[str, torch.Tensor]:
    """Random states of all ranks by `<world size>/<rank>/<name>`."""
    states = {"default": torch.get_rng_state(), **tensor_parallel.get_cuda_rng_tracker().get_states()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: state.cpu().clone() for name, state in states.items()})
    return {f"{len(everyone)}/{rank}/{name}": state for rank, mine in enumerate(everyone) for name, state in mine.items()}


def _restore_rng(saved: dict[str, torch.Tensor]) -> None:
    """Only in a world of the same size; nothing in training draws random numbers (dropout is 0), so another size is no loss."""
    prefix = f"{dist.get_world_size()}/{dist.get_rank()}/"
    mine = {name.removeprefix(prefix): state for name, state in saved.items() if name.startswith(prefix)}
    if mine:
        torch.set_rng_state(mine.pop("default"))
        tensor_parallel.get_cuda_rng_tracker().set_states(mine)
