"""Lets Megatron-Core run on CPU with gloo. Nothing here applies when the trainer uses CUDA.

Megatron writes `device="cuda"` and calls `torch.cuda` throughout. Plain replacement of those functions is preferred to a
`TorchFunctionMode`: the mode is local to a thread and taxes every operation. The patches are global to the process, so only
processes that exist for training may install them.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = (
    *("tensor", "as_tensor", "empty", "zeros", "ones", "full", "eye", "arange", "linspace", "rand", "randn", "randint"),
    *("empty_like", "zeros_like", "ones_like", "full_like"),
)
_installed = False


def install() -> None:
    """Patch torch and Megatron once; call before any Megatron object is built."""
    global _installed
    if _installed:
        return
    _installed = True
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _patch_tensor()
    _patch_cuda()
    _patch_megatron()


class _InertStream:
    """Stands in for streams and events; every method answers itself."""

    def __init__(self, *_args: object, **_kwargs: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., "_InertStream"]:
        return lambda *_args, **_kwargs: self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InertStream)

    __hash__ = object.__hash__

    def __enter__(self) -> "_InertStream":
        return self

    def __exit__(self, *_error: object) -> bool:
        return False


def _is_cuda(device: object) -> bool:
    return device is not None and (isinstance(device, int) or str(device).startswith("cuda"))


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return create


def _patch_tensor() -> None:
    to, type_of = torch.Tensor.to, torch.Tensor.type

    def to_cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and isinstance(args[0], str | torch.device) and _is_cuda(args[0]):
            args = ("cpu", *args[1:])
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return to(self, *args, **kwargs)

    def cuda_type(self: torch.Tensor, dtype: Any = None, **kwargs: Any) -> Any:
        # Megatron's optimizers and gradient clipping compare the *name* with torch.cuda.FloatTensor.
        if dtype is None:
            return type_of(self).replace("torch.", "torch.cuda.", 1)
        return type_of(self, dtype.replace(".cuda.", ".") if isinstance(dtype, str) else dtype, **kwargs)

    torch.Tensor.to = to_cpu
    torch.Tensor.type = cuda_type
    torch.Tensor.cuda = lambda self, *_args, **_kwargs: self
    torch.Tensor.pin_memory = lambda self, *_args, **_kwargs: self
    torch.Tensor.record_stream = lambda self, *_args, **_kwargs: None
    torch.nn.Module.cuda = lambda self, *_args, **_kwargs: self


def _patch_cuda() -> None:
    cuda = torch.cuda
    for name in ("synchronize", "empty_cache", "ipc_collect", "set_device"):
        setattr(cuda, name, lambda *_args, **_kwargs: None)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "device_count"):
        setattr(cuda, name, lambda *_args, **_kwargs: 0)
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, lambda *_args, **_kwargs: _InertStream())
    # torch.manual_seed itself calls torch.cuda.manual_seed: going through it again would never end.
    for name in ("manual_seed", "manual_seed_all"):
        setattr(cuda, name, lambda seed: torch.default_generator.manual_seed(seed))
    cuda.is_available = lambda: False
    cuda.current_device = lambda: "cpu"
    cuda.is_current_stream_capturing = lambda: False
    cuda.Stream = cuda.Event = _InertStream
    cuda.stream = lambda _stream: contextlib.nullcontext()
    cuda.get_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)


def _patch_megatron() -> None:
    import megatron.core.tensor_parallel.random as megatron_random

    megatron_random._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)
    megatron_random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()


def repair_distributed_optimizer() -> None:
    """Without Transformer Engine or Apex, torch's AdamW keeps `step` per parameter, which a resharded state lacks (KeyError)."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    original = DistributedOptimizer._set_main_param_and_optimizer_states
    if getattr(original, "keeps_step", False):
        return

    def set_states(self: Any, model_param: torch.Tensor, tensors: dict[str, torch.Tensor]) -> Any:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        return original(self, model_param, {**({"step": state["step"]} if "step" in state else {}), **tensors})

    set_states.keeps_step = True  # type: ignore[attr-defined]
    DistributedOptimizer._set_main_param_and_optimizer_states = set_states
