"""This rank's gradients and optimizer state as flat tensors in one order, which a core rank and a hybrid rank of one shard share.

The order is that of `module.parameters()`, not that of Megatron's buffers, whose padding depends on the data-parallel size.
"""

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from torch import Tensor

from libra_core.elastic.wire import SEGMENT_INTS
from libra_core.engines.megatron.model import TrainedModel
from libra_core.errors import ElasticError

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A contiguous part of one parameter whose master copy and Adam state this rank holds."""

    parameter: int
    """Number of the parameter on this shard."""
    start: int
    main: Tensor
    """Float32 master values, a view."""
    state: dict[str, Tensor]


def fingerprint(model: TrainedModel) -> bytes:
    """32 bytes over names, shapes and dtypes of this shard's parameters."""
    lines = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in model.module.named_parameters()]
    return hashlib.sha256("\n".join(lines).encode()).digest()


def num_items(model: TrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.module.parameters())


def copy_gradients(model: TrainedModel, flat: Tensor) -> None:
    """From the main_grad buffers into `flat` `[n]`, float32."""
    for view, gradient in _gradients(model, flat):
        view.copy_(gradient)


def add_gradients(model: TrainedModel, flat: Tensor) -> None:
    for view, gradient in _gradients(model, flat):
        gradient.add_(view)


def set_gradients(model: TrainedModel, flat: Tensor) -> None:
    for view, gradient in _gradients(model, flat):
        gradient.copy_(view)


def _gradients(model: TrainedModel, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    at = 0
    for parameter in model.module.parameters():
        size = parameter.numel()
        yield flat[at : at + size], parameter.main_grad.view(-1)
        at += size


def step_with_norm(optimizer: MegatronOptimizer, grad_norm: float) -> None:
    """The optimizer's step with a global norm that another world computed, so that both clip by the same factor bit for bit."""
    optimizer.prepare_grads()
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if parameters := part.get_parameters():
            clip_grad_by_total_norm_fp32(parameters, part.config.clip_grad, grad_norm)
    optimizer.step_with_ready_grads()


def pieces(model: TrainedModel) -> list[Piece]:
    """All that this rank holds; with a distributed optimizer its slice of every parameter that has one here."""
    numbers = {parameter: number for number, parameter in enumerate(model.module.parameters())}
    results: list[Piece] = []
    for wrapper in getattr(model.optimizer, "chained_optimizers", [model.optimizer]):
        for parameter, main in _masters(wrapper):
            start = (
                wrapper._get_model_param_range_map(parameter)["param"].start if isinstance(wrapper, DistributedOptimizer) else 0
            )
            state = wrapper.optimizer.state[main]
            results.append(Piece(parameter=numbers[parameter], start=start, main=main.data.view(-1), state=state))
    return results


def _masters(wrapper: MegatronOptimizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Model parameter and its float32 master copy, which in float32 training is the parameter or a view of it."""
    if isinstance(wrapper, DistributedOptimizer):
        groups = [
            *zip(wrapper.model_float16_groups, wrapper.shard_fp32_from_float16_groups, strict=True),
            *zip(wrapper.model_fp32_groups, wrapper.shard_fp32_groups, strict=True),
        ]
    elif isinstance(wrapper, Float16OptimizerWithFloat16Params):
        groups = [
            *zip(wrapper.float16_groups, wrapper.fp32_from_float16_groups, strict=True),
            *zip(wrapper.fp32_from_fp32_groups, wrapper.fp32_from_fp32_groups, strict=True),
        ]
    else:
        groups = [(group["params"], group["params"]) for group in wrapper.optimizer.param_groups]
    for model_group, main_group in groups:
        yield from zip(model_group, main_group, strict=True)


def segments_of(held: Sequence[Piece]) -> bytes:
    """`(parameter, start, items)` of each piece as int64."""
    return torch.tensor([(piece.parameter, piece.start, piece.main.numel()) for piece in held]).numpy().tobytes()


def copy_state(held: Sequence[Piece], flat: Tensor) -> None:
    """Masters, then first, then second moments of all pieces into `flat` `[3 n]`."""
    total = flat.numel() // (1 + len(MOMENTS))
    at = 0
    for piece in held:
        size = piece.main.numel()
        for number, source in enumerate((piece.main, *(piece.state[name].view(-1) for name in MOMENTS))):
            flat[number * total + at : number * total + at + size].copy_(source)
        at += size


def restore_state(held: Sequence[Piece], segments: memoryview, flat: Tensor) -> int:
    """Write one rank's snapshot into whole parameters; the items written, so that the caller can check that none is missing.

    Raises:
        ElasticError: the segments do not lie within this shard's parameters.
    """
    rows = torch.frombuffer(segments, dtype=torch.int64).view(-1, SEGMENT_INTS).tolist()
    whole = {piece.parameter: piece for piece in held}
    total = flat.numel() // (1 + len(MOMENTS))
    if sum(items for _, _, items in rows) != total:
        raise ElasticError(f"a snapshot announces {sum(items for _, _, items in rows)} items and holds {total}")
    at = 0
    for parameter, start, items in rows:
        piece = whole.get(parameter)
        if piece is None or start < 0 or items < 0 or start + items > piece.main.numel():
            raise ElasticError(f"a snapshot holds items {start} to {start + items} of parameter {parameter}, which are not here")
        for number, target in enumerate((piece.main, *(piece.state[name].view(-1) for name in MOMENTS))):
            target[start : start + items].copy_(flat[number * total + at : number * total + at + items])
        at += items
    return total


def spread_masters(model: TrainedModel) -> None:
    """Write restored masters into the weights that the model computes with, where those are copies."""
    for wrapper in getattr(model.optimizer, "chained_optimizers", [model.optimizer]):
        if isinstance(wrapper, Float16OptimizerWithFloat16Params):
            wrapper._copy_main_params_to_model_params()


def checksum(model: TrainedModel) -> int:
    """crc32 over this shard's weights: finds differences, proves nothing against an adversary."""
    value = 0
    for parameter in model.module.parameters():
        flat = parameter.detach().reshape(-1).cpu().contiguous().view(torch.uint8)
        value = zlib.crc32(flat.numpy(), value)
    return value
