"""Trajectory store: groups that wait to be trained, and batches that are. Token data leave it only for actors."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby

from libra_core.errors import ConfigError
from libra_core.runtime.rollout.admission import PromptCursor, Selection, StepWindow, select_groups
from libra_core.types.batch import TrainingSequence
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.lengths import LengthRecord
from libra_core.types.reports import TrajectoryAudit
from libra_core.types.trajectory import Trajectory

_BATCH = "step-"
_KEPT_LENGTHS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    groups_per_step: int
    staleness: int
    age_slack: int
    drop_groups_without_signal: bool
    """Leave sequences of zero advantage out of the training batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShare:
    """What one look at a step's batch brought."""

    groups: tuple[int, ...]
    """Newly taken."""
    places: int
    """Groups the batch still lacks."""
    late: tuple[int, ...]
    """Unfinished groups that keep ready ones out, being closer to their age limit."""
    waited_for: tuple[int, ...]
    """Such groups that this look waited for, finished by now or not."""
    late_s: float
    """How much of the wait was for them."""


@dataclass(slots=True)
class Batch:
    """A step's groups in the order in which they were taken."""

    groups: list[TrajectoryGroup] = field(default_factory=list)
    is_closed: bool = False
    """Its update is in the weights."""


Parts = tuple[tuple[int, ...], ...]
"""Group indices by part of a streamed batch, in the order in which the trainer was given them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What the trainer says of a batch."""

    parts: Parts
    again: tuple[int, ...] = ()
    """Numbers of sequences that were given a second time, since the replica that held them was lost."""
    trained: tuple[int, ...]
    """Numbers that count, those given again numbered on from the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """Where all groups are that were started; `retried` and `partial` are among the others."""

    running: int = 0
    ready: int = 0
    taken: int = 0
    """Into batches that are not trained yet."""
    trained: int = 0
    dropped: int = 0
    retried: int = 0
    partial: int = 0


@dataclass(slots=True)
class LengthSum:
    """Generated tokens over many trajectories."""

    samples: int = 0
    tokens: int = 0

    def add(self, group: TrajectoryGroup) -> None:
        self.samples += len(group.usable)
        self.tokens += sum(t.generated_tokens for t in group.usable)

    @property
    def mean(self) -> float:
        return self.tokens / self.samples if self.samples else 0.0


class TrajectoryStoreActor:
    """Owns every finished, untrained group. An async actor: one event loop, no threads.

    Consumes: scored groups from the coordinator. `take` waits for groups of a step and is unblocked by `add_group` and
    `drop_group`. Conservation: groups issued = running + ready + in batches + trained + dropped, where a prompt whose group was
    dropped may be issued again.
    """

    def __init__(self, spec: StoreSpec, cursor: PromptCursor) -> None:
        self._spec = spec
        self._ready: dict[int, TrajectoryGroup] = {}
        self._in_flight: dict[int, PolicyVersion] = {}
        self._batches: dict[BatchId, Batch] = {}
        self._trained: set[int] = {i for i in range(cursor.next_index) if i not in cursor.untrained}
        self._counts = GroupCounts()
        """What of it is counted as it happens."""
        self._finished, self._taken = LengthSum(), LengthSum()
        self._audit = TrajectoryAudit()
        self._lengths: deque[LengthRecord] = deque(maxlen=_KEPT_LENGTHS)
        self._changed = asyncio.Condition()

    async def group_started(self, index: int, version: PolicyVersion) -> None:
        self._in_flight[index] = version

    async def group_retried(self, index: int) -> None:
        assert index in self._in_flight, f"group {index} is retried but not in flight"
        self._counts = replace(self._counts, retried=self._counts.retried + 1)

    async def add_group(self, group: TrajectoryGroup, partial: bool) -> None:
        async with self._changed:
            self._in_flight.pop(group.index, None)
            self._ready[group.index] = group
            self._finished.add(group)
            self._counts = replace(self._counts, partial=self._counts.partial + partial)
            self._changed.notify_all()

    async def drop_group(self, index: int) -> None:
        async with self._changed:
            self._in_flight.pop(index, None)
            self._counts = replace(self._counts, dropped=self._counts.dropped + 1)
            self._changed.notify_all()

    async def take(self, step: int, timeout_s: float) -> BatchShare:
        """Move at least one more group into the step's batch, or return after `timeout_s` without."""
        batch = self._batches.setdefault(batch_name(step), Batch())
        late_s, waited_for = 0.0, set[int]()
        now = time.monotonic()
        deadline = now + timeout_s
        async with self._changed:
            while True:
                places = self._spec.groups_per_step - len(batch.groups)
                selection = self._select(step, places)
                if selection.chosen or places == 0 or now >= deadline:
                    for index in selection.chosen:
                        batch.groups.append(self._ready.pop(index))
                        self._taken.add(batch.groups[-1])
                        self._lengths.extend(records_of([batch.groups[-1]], step))
                    left = places - len(selection.chosen)
                    return BatchShare(
                        groups=selection.chosen,
                        places=left,
                        late=selection.late,
                        waited_for=tuple(sorted(waited_for)),
                        late_s=late_s,
                    )
                began = now
                # The lock is held from the look above until `wait` has queued itself, which `wait_for` does in a task of its own:
                # a group that landed in between would notify nobody, and the step would sleep beside it until its deadline.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), deadline - now)
                now = time.monotonic()
                # Only while enough others were ready: else the step waits for work, not for the age limit.
                if selection.late and len(self._ready) >= places:
                    late_s += now - began
                    waited_for.update(selection.late)

    def _select(self, step: int, places: int) -> Selection:
        spec = self._spec
        return select_groups(
            {index: group.started_version for index, group in self._ready.items()},
            self._in_flight,
            StepWindow(step=step, groups_per_step=spec.groups_per_step, staleness=spec.staleness, age_slack=spec.age_slack),
            places=places,
        )

    async def groups(self, batch_id: BatchId) -> list[TrajectoryGroup]:
        return self._batch(batch_id).groups

    async def group_indices(self, batch_id: BatchId) -> tuple[int, ...]:
        return tuple(group.index for group in self._batch(batch_id).groups)

    async def lengths(self, batch_id: BatchId) -> list[LengthRecord]:
        """Without the tokens, which stay here."""
        return records_of(self._batch(batch_id).groups, int(batch_id.removeprefix(_BATCH)))

    async def sequences(self, batch_id: BatchId, indices: tuple[int, ...]) -> tuple[TrainingSequence, ...]:
        """Some groups of a batch as the trainer reads them; samples lost to infrastructure are left out."""
        return tuple(
            TrainingSequence(
                token_ids=t.token_ids,
                loss_mask=t.loss_mask,
                logprobs=t.logprobs,
                advantage=t.advantage or 0.0,
                group_index=position,
            )
            for position, group in enumerate(self._batch(batch_id).groups)
            if group.index in indices
            for t in self._teaching(group)
        )

    def _teaching(self, group: TrajectoryGroup) -> list[Trajectory]:
        """Samples that the trainer is given: scored, and worth a gradient."""
        keeps_all = not self._spec.drop_groups_without_signal
        return [t for t in group.usable if t.advantage is not None and (t.advantage != 0.0 or keeps_all)]

    async def numbered(self, batch_id: BatchId, parts: Parts, numbers: tuple[int, ...]) -> tuple[TrainingSequence, ...]:
        """Sequences by their number in the order in which the parts of the batch were given to the trainer."""
        given = [sequence for part in parts for sequence in await self.sequences(batch_id, part)]
        return tuple(given[number] for number in numbers)

    async def mark_trained(self, batch_id: BatchId, receipt: Receipt | None = None) -> None:
        """Forget a batch whose update is in the weights; it and its predecessor are kept for sampling as text.

        Without a receipt the trainer had the batch already, from before a restart of the flow.
        """
        batch = self._batch(batch_id)
        if not batch.is_closed:
            self._book(batch, receipt)
        batch.is_closed = True
        self._trained.update(group.index for group in batch.groups)
        for old in sorted(self._batches)[:-2]:
            del self._batches[old]

    async def audit(self) -> TrajectoryAudit:
        """What became of every trajectory that a finished step took."""
        return self._audit

    async def length_records(self) -> list[LengthRecord]:
        """Of the newest trajectories, in the order in which steps took them."""
        return list(self._lengths)

    def _book(self, batch: Batch, receipt: Receipt | None) -> None:
        """Count trajectories by id: each is trained once, or has a reason not to be."""
        samples = {t.trajectory_id: t for group in batch.groups for t in group.trajectories}
        again = sum(len(group.trajectories) for group in batch.groups if group.index in self._trained)
        usable = {name for name, t in samples.items() if t.failure is None}
        teaching = [t.trajectory_id for group in batch.groups for t in self._teaching(group)]
        if receipt is None:
            trained = Counter(teaching)
        else:
            order = [
                t.trajectory_id
                for part in receipt.parts
                for group in batch.groups
                if group.index in part
                for t in self._teaching(group)
            ]
            order += [order[number] for number in receipt.again]
            trained = Counter(order[number] for number in receipt.trained)
        self._audit = self._audit.including(
            taken=len(samples),
            failed=len(samples) - len(usable),
            without_signal=len(usable) - len(teaching),
            trained=len(trained),
            lost=len(set(teaching) - trained.keys()),
            doubled=sum(count > 1 for count in trained.values()) + again,
        )

    async def cursor(self) -> PromptCursor:
        """What a resumed run must issue again: everything not yet trained, prompts of lost groups included."""
        return PromptCursor.after(self._trained)

    async def counts(self) -> GroupCounts:
        """Since the start."""
        taken = sum(group.index not in self._trained for batch in self._batches.values() for group in batch.groups)
        return replace(
            self._counts, running=len(self._in_flight), ready=len(self._ready), taken=taken, trained=len(self._trained)
        )

    async def mean_lengths(self) -> tuple[float, float]:
        """Generated tokens per trajectory, of all that have finished and of those that a step took."""
        return self._finished.mean, self._taken.mean

    def _batch(self, batch_id: BatchId) -> Batch:
        if batch_id not in self._batches:
            raise ConfigError(f"batch {batch_id} is not in the store; it holds {sorted(self._batches) or 'none'}")
        return self._batches[batch_id]


def batch_name(step: int) -> BatchId:
    return BatchId(f"{_BATCH}{step:06d}")


def records_of(groups: Iterable[TrajectoryGroup], step: int) -> list[LengthRecord]:
    """Of every sample that generated something, groups together; those lost to infrastructure are left out."""
    return [record_of(t, step) for group in groups for t in group.usable if t.generated_tokens]


def record_of(trajectory: Trajectory, step: int) -> LengthRecord:
    """Turns are the stretches of sampled tokens; what stands between them came from tools."""
    stretches = [(sampled, len(list(run))) for sampled, run in groupby(trajectory.loss_mask[trajectory.prompt_tokens :])]
    generated = [length for sampled, length in stretches if sampled]
    returned = [length for sampled, length in stretches if not sampled]
    return LengthRecord(
        prompt_tokens=trajectory.prompt_tokens,
        generated_tokens=tuple(generated),
        tool_tokens=tuple(returned[: len(generated)]),
        tool_s=tuple(_seconds(trajectory, len(returned[: len(generated)]))),
        step=step,
        engine=str(trajectory.engine_history[-1]) if trajectory.engine_history else None,
    )


def _seconds(trajectory: Trajectory, stretches: int) -> Sequence[float]:
    """Of each stretch of tool tokens; calls beyond them belong to the last one, so that no second is lost."""
    seconds = [tool.duration_s + tool.waited_s for tool in trajectory.tool_returns]
    if not stretches:
        return []
    kept = [*seconds[: stretches - 1], sum(seconds[stretches - 1 :])]
    return kept + [0.0] * (stretches - len(kept))
