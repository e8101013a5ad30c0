"""Megatron writes checkpoint shards from forked children and keeps a spawned queue server alive; we write in this process.

A trainer is a Ray worker with running threads, where a fork may inherit a held lock, and the queue server would import the
worker's main module again. The bytes on disk are the same.
"""

import queue
from typing import Any

from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync


def install() -> None:
    """Replace the two functions that start processes; safe to call again."""
    filesystem_async._get_write_results_queue = queue.SimpleQueue
    FileSystemWriterAsync.write_preloaded_data_multiproc = staticmethod(_write_here)


def _write_here(transforms: list[Any], use_msc: bool, rank: int, buckets: list[Any], results: "queue.SimpleQueue[Any]") -> None:
    written: queue.Queue[tuple[int, Any]] = queue.Queue()
    pending: queue.Queue[int] = queue.Queue()
    for index, bucket in enumerate(buckets):
        pending.put(index)
        FileSystemWriterAsync.write_preloaded_data(transforms, index, bucket, written, pending, True, use_msc=use_msc)
    outcomes = dict(written.get_nowait() for _ in buckets)
    failure = next((outcome for outcome in outcomes.values() if isinstance(outcome, Exception)), None)
    results.put(failure or outcomes)
