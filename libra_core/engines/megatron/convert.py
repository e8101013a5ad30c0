"""HF tensors into this rank's Megatron parameters and back, streamed one parameter at a time."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from safetensors import safe_open
from torch import Tensor

from libra_core.engines.hf_layout import EMBEDDING, FINAL_NORM, HEAD, Cut, hf_tensors, layer_parameters
from libra_core.engines.model_folder import DecoderShape, weight_files
from libra_core.errors import ModelFolderError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParameter:
    """One parameter of this rank with what it is in HF terms."""

    parameter: torch.nn.Parameter
    cut: Cut
    hf_names: tuple[str, ...]


def local_parameters(module: GPTModel, facts: DecoderShape) -> list[LocalParameter]:
    """Parameters of this pipeline stage in export order. The last stage of a tied model holds a second copy of the embedding."""
    named = dict(module.named_parameters())
    rows: list[LocalParameter] = []

    def add(name: str, cut: Cut, *hf_names: str) -> None:
        rows.append(LocalParameter(parameter=named[name], cut=cut, hf_names=hf_names))

    if module.pre_process:
        add("embedding.word_embeddings.weight", Cut.ROWS, EMBEDDING)
    for index, layer in enumerate(module.decoder.layers):
        for row in layer_parameters(facts, layer.layer_number - 1):
            plain = f"decoder.layers.{index}.{row.name}"
            add(plain if plain in named else f"decoder.layers.{index}.{row.fused_name}", row.cut, *row.hf_names)
    if module.post_process:
        add("decoder.final_layernorm.weight", Cut.WHOLE, FINAL_NORM)
        if "output_layer.weight" in named:
            add("output_layer.weight", Cut.ROWS, EMBEDDING if facts.tied_embeddings else HEAD)
    return rows


@torch.no_grad()
def load_hf(module: GPTModel, facts: DecoderShape, folder: str | Path) -> None:
    """Fill this rank's parameters from the folder's safetensors; raises `ModelFolderError` for a missing or misshapen tensor."""
    files = weight_files(Path(folder))
    shapes = dict(hf_tensors(facts))
    tp_rank = parallel_state.get_tensor_model_parallel_rank()
    tp_size = parallel_state.get_tensor_model_parallel_world_size()
    with ExitStack() as stack:
        opened: dict[Path, safe_open] = {}

        def read(name: str) -> Tensor:
            if name not in files:
                raise ModelFolderError(f"{folder} lacks the tensor {name}; its config.json does not match its weights")
            file = files[name]
            if file not in opened:
                opened[file] = stack.enter_context(safe_open(file, framework="pt"))
            tensor = opened[file].get_tensor(name)
            if tuple(tensor.shape) != shapes[name]:
                raise ModelFolderError(
                    f"{folder}: {name} has shape {tuple(tensor.shape)}, but config.json implies {shapes[name]}; export it again"
                )
            return tensor

        for row in local_parameters(module, facts):
            full = [read(name) for name in row.hf_names]
            row.parameter.copy_(_cut(row.cut, full, facts, tp_rank=tp_rank, tp_size=tp_size))


@torch.no_grad()
def export_hf(
    module: GPTModel, facts: DecoderShape, value_of: Callable[[torch.nn.Parameter], Tensor] = lambda parameter: parameter.data
) -> Iterator[tuple[str, Tensor]]:
    """(HF name, full tensor) in `hf_tensors` order, on every rank of one data-parallel replica: all of them must iterate it.

    Peak memory is one parameter. `value_of` chooses what is exported: weights, or gradients for verification.
    """
    stages = parallel_state.get_pipeline_model_parallel_group()
    local = local_parameters(module, facts)
    catalogue: list[list[tuple[Cut, tuple[str, ...], tuple[int, ...], torch.dtype]]] = [
        [] for _ in range(dist.get_world_size(stages))
    ]
    mine = [(row.cut, row.hf_names, tuple(row.parameter.shape), value_of(row.parameter).dtype) for row in local]
    dist.all_gather_object(catalogue, mine, group=stages)
    device = local[0].parameter.device
    seen: set[str] = set()
    for stage, entries in enumerate(catalogue):
        source = dist.get_process_group_ranks(stages)[stage]
        for index, (cut, names, shape, dtype) in enumerate(entries):
            if names[0] in seen:
                continue
            seen.update(names)
            if dist.get_rank() == source:
                shard = value_of(local[index].parameter).detach().clone().contiguous()
            else:
                shard = torch.empty(shape, dtype=dtype, device=device)
            if len(catalogue) > 1:
                dist.broadcast(shard, source, group=stages)
            yield from zip(names, _join(cut, _gather_shards(shard, cut), facts), strict=True)


def _gather_shards(shard: Tensor, cut: Cut) -> list[Tensor]:
    size = parallel_state.get_tensor_model_parallel_world_size()
    if size == 1 or cut is Cut.WHOLE:
        return [shard]
    shards = [torch.empty_like(shard) for _ in range(size)]
    dist.all_gather(shards, shard, group=parallel_state.get_tensor_model_parallel_group())
    return shards


def _cut(cut: Cut, full: list[Tensor], facts: DecoderShape, *, tp_rank: int, tp_size: int) -> Tensor:
    """This rank's shard of full HF tensors."""
    match cut:
        case Cut.WHOLE:
            return full[0]
        case Cut.ROWS:
            return full[0].chunk(tp_size, 0)[tp_rank]
        case Cut.COLUMNS:
            return full[0].chunk(tp_size, 1)[tp_rank]
        case Cut.GATE_UP:
            return torch.cat([tensor.chunk(tp_size, 0)[tp_rank] for tensor in full])
        case Cut.QKV:
            groups, tail = facts.num_kv_heads, full[0].shape[1:]
            grouped = torch.cat([tensor.reshape(groups, -1, *tail) for tensor in full], dim=1)
            return grouped.chunk(tp_size, 0)[tp_rank].reshape(-1, *tail)


def _join(cut: Cut, shards: list[Tensor], facts: DecoderShape) -> list[Tensor]:
    """Full HF tensors from the shards of all tensor-parallel ranks."""
    match cut:
        case Cut.WHOLE:
            return [shards[0]]
        case Cut.ROWS:
            return [torch.cat(shards, 0)]
        case Cut.COLUMNS:
            return [torch.cat(shards, 1)]
        case Cut.GATE_UP:
            return [torch.cat(halves) for halves in zip(*(shard.chunk(2, 0) for shard in shards), strict=True)]
        case Cut.QKV:
            tail = shards[0].shape[1:]
            grouped = torch.cat(shards, 0).reshape(facts.num_kv_heads, -1, *tail)
            query = facts.num_heads // facts.num_kv_heads * facts.head_dim
            parts = grouped.split([query, facts.head_dim, facts.head_dim], 1)
            return [part.reshape(-1, *tail) for part in parts]
