"""Trajectory store: groups that wait to be trained, and batches that are. Token data leave it only for actors."""

import asyncio
import time
from dataclasses import dataclass

from libra_core.errors import ConfigError
from libra_core.runtime.admission import BatchChoice, PromptCursor, choose_batch
from libra_core.types.batch import TrainingBatch, TrainingSequence
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import BatchId, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    groups_per_step: int
    staleness: int
    drop_groups_without_signal: bool
    """Leave sequences of zero advantage out of the training batch."""


class TrajectoryStoreActor:
    """Owns every finished, untrained group. An async actor: one event loop, no threads.

    Consumes: groups from the coordinator. `take` waits for the groups of a step and is unblocked by `add_group`.
    """

    def __init__(self, spec: StoreSpec, cursor: PromptCursor) -> None:
        self._spec = spec
        self._ready: dict[int, TrajectoryGroup] = {}
        self._in_flight: dict[int, PolicyVersion] = {}
        self._batches: dict[BatchId, list[TrajectoryGroup]] = {}
        self._trained: set[int] = {i for i in range(cursor.next_index) if i not in cursor.untrained}
        self._written_off: set[int] = set()
        self._counts = {"retried": 0, "partial": 0, "dropped": 0}
        self._changed = asyncio.Condition()

    async def group_started(self, index: int, version: PolicyVersion) -> None:
        self._in_flight[index] = version

    async def group_retried(self, index: int) -> None:
        assert index in self._in_flight, f"group {index} is retried but not in flight"
        self._counts["retried"] += 1

    async def add_group(self, group: TrajectoryGroup, partial: bool) -> None:
        async with self._changed:
            self._in_flight.pop(group.index, None)
            self._ready[group.index] = group
            self._counts["partial"] += partial
            self._changed.notify_all()

    async def drop_group(self, index: int) -> None:
        async with self._changed:
            self._in_flight.pop(index, None)
            self._written_off.add(index)
            self._counts["dropped"] += 1
            self._changed.notify_all()

    async def take(self, step: int, timeout_s: float) -> BatchChoice:
        """Reserve the groups of a step, or say after `timeout_s` which are late. Repeatable: a taken batch is returned again."""
        batch_id = batch_name(step)
        if batch_id in self._batches:
            return BatchChoice(chosen=tuple(g.index for g in self._batches[batch_id]), late=())
        deadline = time.monotonic() + timeout_s
        async with self._changed:
            while True:
                choice = self._choose(step)
                remaining = deadline - time.monotonic()
                if choice.complete:
                    self._batches[batch_id] = [self._ready.pop(index) for index in choice.chosen]
                    return choice
                if remaining <= 0:
                    return choice
                try:
                    await asyncio.wait_for(self._changed.wait(), remaining)
                except TimeoutError:
                    continue

    def _choose(self, step: int) -> BatchChoice:
        return choose_batch(
            {index: group.started_version for index, group in self._ready.items()},
            self._in_flight,
            step=step,
            groups_per_step=self._spec.groups_per_step,
            staleness=self._spec.staleness,
        )

    async def groups(self, batch_id: BatchId) -> list[TrajectoryGroup]:
        return self._batch(batch_id)

    async def put_scored(self, batch_id: BatchId, groups: list[TrajectoryGroup]) -> None:
        self._batch(batch_id)
        self._batches[batch_id] = groups

    async def training_batch(self, batch_id: BatchId, expected_version: PolicyVersion) -> TrainingBatch:
        """The scored batch as the trainer reads it; sequences that failed for infrastructure reasons are left out."""
        sequences = [
            TrainingSequence(
                token_ids=t.token_ids,
                loss_mask=t.loss_mask,
                logprobs=t.logprobs,
                advantage=t.advantage or 0.0,
                group_index=position,
            )
            for position, group in enumerate(self._batch(batch_id))
            for t in group.usable
            if t.advantage is not None and (t.advantage != 0.0 or not self._spec.drop_groups_without_signal)
        ]
        return TrainingBatch(batch_id=batch_id, expected_version=expected_version, sequences=tuple(sequences))

    async def mark_trained(self, batch_id: BatchId) -> None:
        """Forget a batch whose update is in the weights; its predecessor is kept for sampling as text."""
        self._trained.update(group.index for group in self._batch(batch_id))
        for old in sorted(self._batches)[:-2]:
            del self._batches[old]

    async def cursor(self) -> PromptCursor:
        """What a resumed run must issue again: everything not yet trained."""
        return PromptCursor.after(self._trained, self._written_off)

    async def counts(self) -> dict[str, int]:
        """Retried, partial and dropped groups since the start, and groups waiting."""
        return {**self._counts, "ready": len(self._ready), "in_flight": len(self._in_flight)}

    async def in_flight(self) -> dict[int, PolicyVersion]:
        return dict(self._in_flight)

    def _batch(self, batch_id: BatchId) -> list[TrajectoryGroup]:
        if batch_id not in self._batches:
            raise ConfigError(f"batch {batch_id} is not in the store; it holds {sorted(self._batches) or 'none'}")
        return self._batches[batch_id]


def batch_name(step: int) -> BatchId:
    return BatchId(f"step-{step:06d}")
