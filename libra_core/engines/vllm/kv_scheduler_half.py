"""The scheduler's half of the shared-folder connector: what is to be saved and loaded, and where it lies.

It acts only for requests that carry `kv_transfer_params` with `libra`:

- `{"libra": "save", "token_ids": [...], "version": v}`: blocks that the prefix cache holds of these tokens are saved. Nothing
  is computed for it; the request itself, of one token, waits until the files are there and then tells how many tokens they are.
- `{"libra": "load"}`: what the folder holds of the prompt beyond the prefix cache is loaded before the prefill.

vLLM's own block hashes name the blocks: chained SHA-256 over the tokens, salted with the policy version.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request

from libra_core.engines.vllm.kv_folder import BlockAddress, KvFolder
from libra_core.engines.vllm.kv_jobs import KvJobs, KvReport, LoadJob, SaveJob

SAVE, LOAD = "save", "load"
_GROUP = [0]
"""The only KV cache group of a model with plain attention."""


@dataclass(slots=True, kw_only=True)
class _Save:
    hashes: Sequence[bytes]
    version: int
    sent: bool = False
    reports: list[int] = field(default_factory=list[int])
    """Blocks in the folder, by rank that has reported."""
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    first: int
    """Position of the first block that is to be loaded."""
    addresses: tuple[BlockAddress, ...]


class SchedulerHalf:
    """Lives in the engine core, on its one thread."""

    def __init__(self, folder: KvFolder, *, block_size: int, degree: int, total_heads: int, hasher: Callable[[Any], Any]) -> None:
        self._folder = folder
        self._block_size = block_size
        self._degree = degree
        self._total_heads = total_heads
        self._hasher = hasher
        self._pool: BlockPool | None = None
        self._saves: dict[str, _Save] = {}
        self._matches: dict[str, _Match] = {}
        self._loads: list[LoadJob] = []
        self._loaded: dict[str, int] = {}
        """Tokens by request."""
        self._lost: dict[str, int] = {}

    def use(self, pool: BlockPool) -> None:
        self._pool = pool

    def arrived(self, request: Request) -> None:
        params = request.kv_transfer_params or {}
        if params.get("libra") != SAVE:
            return
        shadow = Request(
            request_id=request.request_id,
            prompt_token_ids=params["token_ids"],
            sampling_params=request.sampling_params,
            pooling_params=None,
            cache_salt=str(params["version"]),
            block_hasher=self._hasher,
        )
        self._saves[request.request_id] = _Save(hashes=shadow.block_hashes, version=params["version"])

    def match(self, request: Request, computed_tokens: int) -> int | None:
        """Tokens that can be loaded beyond those; None while a save is under way. A request that was preempted may run on under
        other weights than it came with, and is computed."""
        save = self._saves.get(request.request_id)
        if save is not None:
            return 0 if save.done else None
        params = request.kv_transfer_params or {}
        if params.get("libra") != LOAD or request.num_preemptions:
            return 0
        first = computed_tokens // self._block_size
        wanted = request.block_hashes[first : (request.num_tokens - 1) // self._block_size]
        version = int(request.cache_salt or 0)
        degree, count = self._folder.longest(version, [block.hex() for block in wanted], self._degrees(version))
        self._matches[request.request_id] = _Match(
            first=first,
            addresses=tuple(BlockAddress(version=version, degree=degree, name=block.hex()) for block in wanted[:count]),
        )
        return count * self._block_size

    def allocated(self, request: Request, block_ids: Sequence[int], external_tokens: int) -> None:
        match = self._matches.pop(request.request_id, None)
        if match is None or not external_tokens:
            return
        count = external_tokens // self._block_size
        assert count == len(match.addresses), "vLLM loads what was offered, or nothing"
        targets = block_ids[match.first : match.first + count]
        self._loads.append(LoadJob(request_id=request.request_id, blocks=tuple(zip(targets, match.addresses, strict=True))))
        self._loaded[request.request_id] = external_tokens

    def jobs(self) -> KvJobs:
        """Of this step. Blocks are looked up only now, so that none can be given away before the step has copied it."""
        jobs = KvJobs(loads=self._loads)
        self._loads = []
        for request_id, save in self._saves.items():
            if save.sent:
                continue
            save.sent = True
            blocks = self._cached(save)
            save.done = not blocks
            if blocks:
                jobs.saves.append(SaveJob(request_id=request_id, blocks=blocks))
        return jobs

    def hear(self, report: KvReport) -> None:
        for request_id, count in report.saved:
            save = self._saves.get(request_id)
            if save is not None:
                save.reports.append(count)
                save.done = len(save.reports) == self._degree
        for request_id, count in report.failed.items():
            if request_id in self._loaded:
                self._lost[request_id] = count * self._block_size

    def finished(self, request: Request) -> dict[str, int] | None:
        """What the asker is told with the request's last output."""
        save = self._saves.pop(request.request_id, None)
        self._matches.pop(request.request_id, None)
        if save is not None:
            return {"saved_tokens": min(save.reports, default=0) * self._block_size}
        loaded, lost = self._loaded.pop(request.request_id, 0), self._lost.pop(request.request_id, 0)
        return {"loaded_tokens": loaded - lost, "lost_tokens": lost} if loaded else None

    def _degrees(self, version: int) -> list[int]:
        """This engine's first, then others whose heads divide as evenly."""
        if self._total_heads % self._degree:
            return [self._degree]
        others = [degree for degree in self._folder.degrees(version) if self._total_heads % degree == 0]
        return [self._degree, *(degree for degree in others if degree != self._degree)]

    def _cached(self, save: _Save) -> tuple[tuple[int, BlockAddress], ...]:
        """The longest prefix that the prefix cache holds."""
        assert self._pool is not None, "vLLM binds the block pool before the first step"
        blocks: list[tuple[int, BlockAddress]] = []
        for block_hash in save.hashes:
            cached = self._pool.get_cached_block(block_hash, _GROUP)
            if cached is None:
                break
            address = BlockAddress(version=save.version, degree=self._degree, name=block_hash.hex())
            blocks.append((cached[0].block_id, address))
        return tuple(blocks)
