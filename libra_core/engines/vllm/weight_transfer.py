"""Weight updates inside vLLM's workers. vLLM imports this module there before it builds the model (`worker_extension_cls`).

An update has two halves. *Staging* brings the tensors into this process's memory and checks their names and shapes, in a
thread, while the engine goes on generating. *Loading* copies the staged tensors into the model; the engine is paused then.

On CPU, vLLM prepacks every linear layer for oneDNN at load and frees the original weight. Its own update cycle then misses a
tied LM head, which is not in the checkpoint: the engine keeps the old head and its log-probs are silently wrong. Switching
the prepacking off removes the copy that can go stale, instead of refreshing it: each layer computes from `layer.weight`,
loading is a plain copy in place, and it is several times faster at equal decode speed. On CUDA nothing is prepacked for dense
models, and vLLM's layerwise cycle is kept because quantised or repacked layers need it.
"""

import logging
import os
import pickle
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import vllm._custom_ops as vllm_ops
import vllm.model_executor.layers.utils as vllm_layer_utils
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from libra_core.engines.broadcast import BroadcastGroup, join_group
from libra_core.engines.device_clock import await_device
from libra_core.engines.vllm.lifetime import die_with
from libra_core.engines.vllm.shared_folder import tell_weights
from libra_core.engines.weight_source import BroadcastWeights, FileWeights, TensorMeta, WeightSource
from libra_core.errors import ResourceError

logger = logging.getLogger(__name__)

_BACKEND = "libra"
_PAGE_BYTES = 4096
_TIED_HEAD = "lm_head.weight"


@dataclass
class TransportInfo(WeightTransferInitInfo):
    """How weights will arrive; sent once. `rank_offset` is the group rank of this engine's first worker."""

    kind: Literal["file", "broadcast"]
    host: str
    port: int
    rank_offset: int
    world_size: int
    timeout_s: float


@dataclass
class LoadInfo(WeightTransferUpdateInfo):
    """Load what was staged under this version."""

    version: int


class LibraWeightTransfer(WeightTransferEngine[TransportInfo, LoadInfo]):
    """One worker's end of the transport.

    The staging thread owns `_staged` and `_failure` until it has ended; then the worker's main thread does.
    """

    init_info_cls = TransportInfo
    update_info_cls = LoadInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        die_with(self.vllm_config.additional_config, kill_parent=self.parallel_config.distributed_executor_backend == "mp")
        self._group: BroadcastGroup | None = None
        self._staged: list[tuple[str, torch.Tensor]] = []
        self._staged_version: int | None = None
        self._failure: str | None = None
        self._thread: threading.Thread | None = None
        self._expected_shapes = _folder_shapes(Path(self.model_config.model))
        if current_platform.is_cpu():
            _require_plain_weights(self.model)

    def init_transfer_engine(self, init_info: TransportInfo) -> None:
        if init_info.kind == "broadcast":
            rank = init_info.rank_offset + self.parallel_config.rank
            self._group = None
            try:
                self._group = join_group(init_info.host, init_info.port, rank, init_info.world_size, init_info.timeout_s)
            except ResourceError as error:  # another rank is missing: this one is as good as before, and staging says so
                logger.warning("%s", error)

    def start_staging(self, source: WeightSource, version: int) -> None:
        assert self._thread is None or not self._thread.is_alive(), "one publication at a time"
        self._staged, self._staged_version, self._failure = [], None, None
        name = "libra-staging"
        self._thread = threading.Thread(target=self._stage, args=(source, version), name=name, daemon=True)  # failure: `_failure`
        self._thread.start()

    def staging_state(self) -> tuple[bool, str | None]:
        """Whether staging is over, and why it failed."""
        return self._thread is not None and not self._thread.is_alive(), self._failure

    def start_weight_update(self) -> None:
        if not current_platform.is_cpu():
            initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: LoadInfo) -> None:
        assert self._staged_version == update_info.version, f"version {update_info.version} was not staged"
        with torch.no_grad():
            self.model.load_weights(iter(self._staged))
        self._staged, self._staged_version = [], None
        tell_weights(update_info.version)

    def finish_weight_update(self) -> None:
        """Whoever times the exchange times the load: the weights are in place when this returns."""
        if not current_platform.is_cpu():
            finalize_layerwise_reload(self.model, self.model_config)
        await_device(self.device)

    def shutdown(self) -> None:
        self._group = None

    def _stage(self, source: WeightSource, version: int) -> None:
        try:
            self._check(source)
            self._staged = _map_file(source.path) if isinstance(source, FileWeights) else self._receive(source)
            self._staged_version = version
        except Exception as error:  # crosses a process border as text; the engine keeps its weights
            self._failure = f"{type(error).__name__}: {error}"

    def _check(self, source: WeightSource) -> None:
        tied = bool(getattr(self.model_config.hf_config, "tie_word_embeddings", False))
        given = _without_tied_head(_shapes_of(source), tied)
        expected = _without_tied_head(self._expected_shapes, tied)
        wrong = sorted(name for name in given.keys() | expected.keys() if given.get(name) != expected.get(name))
        if wrong:
            example = f"{wrong[0]}: got {given.get(wrong[0])}, expected {expected.get(wrong[0])}"
            raise ValueError(f"{len(wrong)} tensors differ from the model, for example {example}")

    def _receive(self, source: BroadcastWeights) -> list[tuple[str, torch.Tensor]]:
        if self._group is None:
            raise ValueError("no broadcast transport is open")
        return [(meta.name, self._receive_one(self._group, meta)) for meta in source.tensors]

    def _receive_one(self, group: BroadcastGroup, meta: TensorMeta) -> torch.Tensor:
        buffer = torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device=self.device)
        group.broadcast(buffer)
        # Staging a whole model beside the served one would not fit a GPU.
        return buffer if current_platform.is_cpu() else buffer.cpu()


class WorkerExtension:
    """Methods that `collective_rpc` finds on every worker."""

    weight_transfer_engine: LibraWeightTransfer

    def libra_pids(self) -> tuple[int, int]:
        """This worker and the process that started it."""
        return os.getpid(), os.getppid()

    def libra_start_staging(self, source: bytes, version: int) -> None:
        """`source` is a pickled `WeightSource`: vLLM's own encoding would turn it into a dict."""
        self.weight_transfer_engine.start_staging(pickle.loads(source), version)

    def libra_staging_state(self) -> tuple[bool, str | None]:
        return self.weight_transfer_engine.staging_state()


def _shapes_of(source: WeightSource) -> dict[str, tuple[int, ...]]:
    if isinstance(source, FileWeights):
        return _file_shapes(Path(source.path))
    return {meta.name: tuple(meta.shape) for meta in source.tensors}


def _folder_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of the model the engine was started from, over all its shards."""
    return {name: shape for path in sorted(folder.glob("*.safetensors")) for name, shape in _file_shapes(path).items()}


def _file_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a mapping


def _without_tied_head(shapes: dict[str, tuple[int, ...]], tied: bool) -> dict[str, tuple[int, ...]]:
    """A tied head may be written or left out; it is the embedding either way."""
    return {name: shape for name, shape in shapes.items() if not (tied and name == _TIED_HEAD)}


def _map_file(path: str) -> list[tuple[str, torch.Tensor]]:
    """Map every tensor without a copy and touch its pages, so that loading meets no page faults."""
    with safe_open(path, framework="pt") as file:
        tensors = [(name, file.get_tensor(name)) for name in file.keys()]  # noqa: SIM118 - not a mapping
    for _, tensor in tensors:
        tensor.view(-1).view(torch.uint8)[::_PAGE_BYTES].sum()
    return tensors


def _switch_prepacking_off() -> None:
    vllm_ops._supports_onednn = False
    vllm_layer_utils.check_cpu_sgl_kernel = lambda *_args, **_kwargs: False


def _require_plain_weights(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel() == 0:
            raise RuntimeError(f"vLLM prepacked {name} although prepacking is off; updates would leave it stale")


if current_platform.is_cpu():
    _switch_prepacking_off()
WeightTransferEngineFactory.register_engine(_BACKEND, LibraWeightTransfer)
