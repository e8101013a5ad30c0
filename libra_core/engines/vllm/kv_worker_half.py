"""A worker's half of the shared-folder connector: copies blocks between this rank's KV cache and the folder."""

import itertools
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from more_itertools import chunked

from libra_core.engines.vllm.kv_folder import BlockAddress, KvFolder, Payload
from libra_core.engines.vllm.kv_jobs import KvReport, LoadJob, SaveJob

logger = logging.getLogger(__name__)

_AT_ONCE = 64
"""Blocks copied to the device together."""
_LAYER_DIMENSIONS = 4
_WRITTEN_PER_STEP_BYTES = 32 << 20
"""What a step of the engine may be delayed by."""


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A save whose blocks are copied and not all written."""

    request_id: str
    addresses: list[BlockAddress]
    payloads: Payload
    """`[blocks, layers, heads, bytes]`"""
    saved_ns: int
    written: int = 0


class WorkerHalf:
    """The worker's main thread owns everything.

    Saves are copied within the step that asks for them, when the blocks are sure to be intact, and written in that step and
    the following ones. A thread for it would have to fight the engine's polling for the interpreter.
    """

    def __init__(self, folder: KvFolder, *, rank: int, degree: int, total_heads: int, block_size: int, version: int) -> None:
        self._folder = folder
        self._rank = rank
        self._degree = degree
        self._total_heads = total_heads
        self._block_size = block_size
        self._version = version
        """Of the weights that compute here now."""
        self._layers: list[torch.Tensor] = []
        """`[blocks, heads, block_size, channels]` each, in the model's order."""
        self._pending: deque[_Pending] = deque()
        self._saved: list[tuple[str, int]] = []
        self._failed: dict[str, int] = {}
        self._bad_blocks: set[int] = set()

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Raises `ValueError` for a layout that this connector does not read."""
        for name, layer in kv_caches.items():
            if layer.dim() != _LAYER_DIMENSIONS or layer.shape[2] != self._block_size:
                raise ValueError(
                    f"rollout.kv_transfer = shared_folder reads KV caches [blocks, heads, {self._block_size}, channels]; that of "
                    f"{name} is {list(layer.shape)}; choose one of vLLM's connectors"
                )
        self._layers = list(kv_caches.values())

    def weights_replaced(self, version: int) -> None:
        """From here on KV of older versions is neither saved nor loaded."""
        self._version = version
        if self._rank == 0:
            self._folder.drop_before(version)

    def load(self, jobs: Sequence[LoadJob]) -> None:
        """Every block that cannot be had, and those after it, are reported and computed by vLLM."""
        for job in jobs:
            loaded = self._load(job)
            if loaded < len(job.blocks):
                self._failed[job.request_id] = len(job.blocks) - loaded
                self._bad_blocks.update(block_id for block_id, _ in job.blocks[loaded:])

    def save(self, jobs: Sequence[SaveJob]) -> None:
        for job in jobs:
            if job.blocks[0][1].version != self._version:
                self._saved.append((job.request_id, 0))
                continue
            copied = self._copy([block_id for block_id, _ in job.blocks])
            fitting = self._folder.make_room(copied.nbytes) // copied[0].nbytes
            addresses = [address for _, address in job.blocks[:fitting]]
            self._pending.append(
                _Pending(request_id=job.request_id, addresses=addresses, payloads=copied, saved_ns=time.time_ns())
            )
        budget = _WRITTEN_PER_STEP_BYTES
        while self._pending and budget > 0:
            budget -= self._write(self._pending[0], budget)

    def bad_blocks(self) -> set[int]:
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def report(self) -> KvReport | None:
        saved, self._saved = self._saved, []
        failed, self._failed = self._failed, {}
        return KvReport(saved=saved, failed=failed) if saved or failed else None

    def _load(self, job: LoadJob) -> int:
        """Number of leading blocks that are in place."""
        loaded = 0
        for batch in chunked(job.blocks, _AT_ONCE):
            read = list(itertools.takewhile(lambda one: one is not None, (self._read(address) for _, address in batch)))
            payloads = [payload for payload in read if payload is not None]
            if payloads:
                self._place([block_id for block_id, _ in batch[: len(payloads)]], payloads)
            loaded += len(payloads)
            if len(payloads) < len(batch):
                break
        return loaded

    def _read(self, address: BlockAddress) -> Payload | None:
        if address.version != self._version:
            return None
        if address.degree == self._degree:
            payload = self._folder.read_own(address, self._rank)
        else:
            heads = self._total_heads // self._degree
            payload = self._folder.read(address, range(self._rank * heads, (self._rank + 1) * heads), self._total_heads)
        return payload if payload is not None and payload.shape == self._block_shape else None

    @property
    def _block_shape(self) -> tuple[int, int, int]:
        """`[layers, heads, bytes]` of one block on this rank."""
        layer = self._layers[0]
        return len(self._layers), layer.shape[1], layer.shape[2] * layer.shape[3] * layer.element_size()

    def _place(self, block_ids: list[int], payloads: list[Payload]) -> None:
        stacked = torch.from_numpy(np.stack(payloads, axis=1))  # [layers, blocks, heads, bytes]
        for layer, content in zip(self._layers, stacked, strict=True):
            values = content.view(layer.dtype).view(len(block_ids), *layer.shape[1:])
            layer[torch.tensor(block_ids, device=layer.device)] = values.to(layer.device)

    def _copy(self, block_ids: list[int]) -> Payload:
        """`[blocks, layers, heads, bytes]`, in memory of the host."""
        first = self._layers[0]
        copied = torch.empty((len(block_ids), len(self._layers), *first.shape[1:]), dtype=first.dtype)
        index = torch.tensor(block_ids, device=first.device)
        for number, layer in enumerate(self._layers):
            copied[:, number].copy_(layer[index])
        return copied.view(len(block_ids), len(self._layers), first.shape[1], -1).view(torch.uint8).numpy()

    def _write(self, save: _Pending, budget: int) -> int:
        """Go on with a save; returns bytes written. A context without its beginning is of no use, so its end is evicted first."""
        size = save.payloads[0].nbytes
        end = min(len(save.addresses), save.written + max(1, budget // size))
        began, ends = save.written, False
        try:
            for at in range(began, end):
                if save.addresses[at].version != self._version:  # published meanwhile
                    ends = True
                    break
                self._folder.write(save.addresses[at], self._rank, save.payloads[at], saved_ns=save.saved_ns - at)
                save.written += 1
        except FileNotFoundError:  # an engine with newer weights has removed the folder of this version
            ends = True
        except OSError as error:
            logger.warning("KV of %d blocks could not be saved: %s", len(save.addresses) - save.written, error)
            ends = True
        if ends or save.written == len(save.addresses):
            self._pending.popleft()
            self._saved.append((save.request_id, save.written))
        return (save.written - began) * size
