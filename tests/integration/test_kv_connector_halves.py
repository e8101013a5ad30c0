"""The two halves of the shared-folder connector on vLLM's own requests and block hashes, without an engine."""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from libra_core.engines.vllm.kv_folder import KvFolder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

BLOCK, HEADS, LAYERS, CHANNELS = 32, 4, 3, 16
VERSION = 3
TOKENS = list(range(200))
HELD = len(TOKENS) // BLOCK
LOAD = {"libra": "load"}


@dataclass
class Engine:
    """Both halves of one engine, with random KV in bfloat16 and a prefix cache that holds what it is told."""

    folder: KvFolder
    degree: int = 1
    version: int = VERSION
    cached: dict[bytes, int] = field(default_factory=dict[bytes, int])
    steps: int = 0

    def __post_init__(self) -> None:
        import torch
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        from libra_core.engines.vllm.kv_scheduler_half import SchedulerHalf
        from libra_core.engines.vllm.kv_worker_half import WorkerHalf

        algorithm = get_hash_fn_by_name("sha256")
        init_none_hash(algorithm)
        self.hasher = get_request_block_hasher(BLOCK, algorithm)
        common: dict[str, Any] = {"block_size": BLOCK, "degree": self.degree, "total_heads": HEADS}
        self.scheduler = SchedulerHalf(self.folder, hasher=self.hasher, **common)
        self.scheduler.use(SimpleNamespace(get_cached_block=self.cached_block))  # type: ignore[arg-type]
        shape = (40, HEADS // self.degree, BLOCK, CHANNELS)
        self.kv = [{f"layer{at}": torch.randn(shape).to(torch.bfloat16) for at in range(LAYERS)} for _ in range(self.degree)]
        self.workers = [WorkerHalf(self.folder, rank=rank, version=self.version, **common) for rank in range(self.degree)]
        for worker, caches in zip(self.workers, self.kv, strict=True):
            worker.register(caches)

    def cached_block(self, block_hash: bytes, _groups: list[int]) -> list[Any] | None:
        return [SimpleNamespace(block_id=self.cached[block_hash])] if block_hash in self.cached else None

    def request(self, tokens: list[int], params: dict[str, Any], version: int = VERSION) -> Any:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": params})
        return Request("r", tokens, sampling, None, cache_salt=str(version), block_hasher=self.hasher)

    def hold(self, tokens: list[int], first_block: int) -> None:
        """The prefix cache has these tokens in consecutive blocks."""
        self.cached |= {name: first_block + at for at, name in enumerate(self.request(tokens, {}).block_hashes)}

    def offer(self, tokens: list[int], publish_at: int | None = None) -> dict[str, int] | None:
        """Steps until the save is over; `publish_at` steps later come other weights."""
        asked = self.request([0], {"libra": "save", "token_ids": tokens, "version": VERSION})
        self.scheduler.arrived(asked)
        while self.scheduler.match(asked, 0) is None:
            self.steps += 1
            assert self.steps < 50
            if self.steps == publish_at:
                for worker in self.workers:
                    worker.weights_replaced(VERSION + 1)
            self.step()
        return self.scheduler.finished(asked)

    def take(self, tokens: list[int], block_ids: list[int], computed: int = 0) -> dict[str, int] | None:
        asked = self.request(tokens, LOAD)
        matched = self.scheduler.match(asked, computed)
        assert matched is not None
        self.scheduler.allocated(asked, block_ids, matched)
        self.step()
        return self.scheduler.finished(asked)

    def step(self) -> None:
        jobs = self.scheduler.jobs()
        for worker in self.workers:
            worker.load(jobs.loads)
            worker.save(jobs.saves)
        reports = [report for report in (worker.report() for worker in self.workers) if report is not None]
        if reports:
            self.scheduler.hear(functools.reduce(lambda one, other: one.aggregate(other), reports))

    def content(self, block_ids: list[int]) -> Any:
        """`[layers, blocks, heads, ...]` of all ranks."""
        import torch

        return torch.stack([torch.cat([rank[f"layer{at}"][block_ids] for rank in self.kv], dim=1) for at in range(LAYERS)])


@pytest.fixture
def folder(tmp_path: Path) -> KvFolder:
    return KvFolder(tmp_path, "layout", 64 << 20)


@pytest.mark.parametrize("source", [1, 2])
@pytest.mark.parametrize("target", [1, 2, 4])
def test_blocks_arrive_as_they_left_between_all_degrees(folder: KvFolder, source: int, target: int) -> None:
    home, other = Engine(folder, source), Engine(folder, target)
    home.hold(TOKENS, first_block=5)
    assert home.offer(TOKENS) == {"saved_tokens": HELD * BLOCK}
    ids = list(range(20, 20 + HELD + 1))
    assert other.take(TOKENS, ids, computed=BLOCK) == {"loaded_tokens": (HELD - 1) * BLOCK, "lost_tokens": 0}
    assert home.content(list(range(6, 5 + HELD))).equal(other.content(ids[1:HELD]))
    assert not any(worker.bad_blocks() for worker in other.workers)


def test_only_what_the_prefix_cache_still_holds_is_saved(folder: KvFolder) -> None:
    home = Engine(folder)
    assert home.offer(TOKENS) == {"saved_tokens": 0}
    home.hold(TOKENS[: 2 * BLOCK], first_block=5)
    assert home.offer(TOKENS) == {"saved_tokens": 2 * BLOCK}


def test_a_large_save_is_spread_over_steps(folder: KvFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libra_core.engines.vllm.kv_worker_half._WRITTEN_PER_STEP_BYTES", 1)
    home = Engine(folder)
    home.hold(TOKENS, first_block=5)
    assert home.offer(TOKENS) == {"saved_tokens": HELD * BLOCK}
    assert home.steps == HELD, "a block a step"


def test_a_publication_ends_a_save_that_is_under_way(folder: KvFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libra_core.engines.vllm.kv_worker_half._WRITTEN_PER_STEP_BYTES", 1)
    home = Engine(folder)
    home.hold(TOKENS, first_block=5)
    home.offer(TOKENS, publish_at=3)
    assert folder.held_bytes() == 0
    assert home.offer(TOKENS) == {"saved_tokens": 0}, "the worker computes with other weights than the offer is for"


def test_a_worker_with_other_weights_loads_nothing(folder: KvFolder) -> None:
    home, other = Engine(folder), Engine(folder, version=VERSION + 1)
    home.hold(TOKENS, first_block=5)
    home.offer(TOKENS)
    before = other.content(list(range(20, 26)))
    assert other.take(TOKENS, list(range(20, 27))) == {"loaded_tokens": 0, "lost_tokens": HELD * BLOCK}
    assert other.workers[0].bad_blocks() == set(range(20, 26))
    assert before.equal(other.content(list(range(20, 26))))


def test_a_folder_that_is_too_small_takes_the_beginning(tmp_path: Path) -> None:
    block_bytes = LAYERS * HEADS * BLOCK * CHANNELS * 2
    small = KvFolder(tmp_path, "layout", 2 * block_bytes + block_bytes // 2)
    home = Engine(small)
    home.hold(TOKENS, first_block=5)
    assert home.offer(TOKENS) == {"saved_tokens": 2 * BLOCK}


def test_a_kv_layout_that_is_not_read_is_refused_at_the_start(folder: KvFolder) -> None:
    import torch

    worker = Engine(folder).workers[0]
    with pytest.raises(ValueError, match=r"reads KV caches \[blocks, heads, 32, channels\]; that of layer is \[40, 16, 4, 8\]"):
        worker.register({"layer": torch.zeros(40, 16, 4, 8)})
