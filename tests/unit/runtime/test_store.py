"""The store forms batches, hands out each group once and knows what a resume must issue again."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from libra_core.runtime.rollout.admission import PromptCursor
from libra_core.runtime.rollout.store import Receipt, StoreSpec, TrajectoryStoreActor, batch_name
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import GroupId, PolicyVersion, PromptId, TrajectoryId
from libra_core.types.reports import TrajectoryAudit
from libra_core.types.trajectory import (
    Failure,
    FailureKind,
    FinishReason,
    Prompt,
    Trajectory,
    VersionSegment,
)

START = PromptCursor(next_index=0, untrained=())


def store(*, staleness: int = 1, age_slack: int = 0) -> TrajectoryStoreActor:
    spec = StoreSpec(groups_per_step=2, staleness=staleness, age_slack=age_slack, drop_groups_without_signal=True)
    return TrajectoryStoreActor(spec, START)


def sample(index: int, advantage: float | None, failure: Failure | None = None) -> Trajectory:
    return Trajectory(
        trajectory_id=TrajectoryId(f"g{index}.0"),
        group_id=GroupId(f"g{index}"),
        prompt_id=PromptId(str(index)),
        sample_index=0,
        token_ids=(1, 2),
        loss_mask=(0, 1),
        logprobs=(0.0, -1.0),
        prompt_tokens=1,
        versions=(VersionSegment(version=PolicyVersion(0), start=1, end=2),),
        turns=1,
        tool_returns=(),
        finish_reason=FinishReason.STOP,
        engine_history=(),
        started_s=0.0,
        finished_s=1.0,
        advantage=advantage,
        failure=failure,
    )


def group(index: int, *samples: Trajectory, started: int = 0) -> TrajectoryGroup:
    prompt = Prompt(prompt_id=PromptId(str(index)), token_ids=(1,), text="", answers=())
    return TrajectoryGroup(
        index=index, prompt=prompt, started_version=PolicyVersion(started), trajectories=samples or (sample(index, 1.0),)
    )


async def put(target: TrajectoryStoreActor, *indices: int) -> None:
    for index in indices:
        await target.group_started(index, PolicyVersion(0))
        await target.add_group(group(index), partial=False)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_take_hands_groups_out_as_they_finish() -> None:
    async def claim() -> None:
        target = store()
        await put(target, 0)
        first = await target.take(0, 5.0)
        assert (first.groups, first.places) == ((0,), 1)
        taking = asyncio.create_task(target.take(0, 5.0))
        await asyncio.sleep(0.01)
        assert not taking.done()
        await put(target, 1)
        second = await taking
        assert (second.groups, second.places) == ((1,), 0)

    run(claim())


def test_take_past_its_time_names_the_groups_at_their_age_limit() -> None:
    async def claim() -> None:
        target = store(staleness=0)
        await target.group_started(1, PolicyVersion(0))
        share = await target.take(0, 0.02)
        assert (share.groups, share.late) == ((), (1,))

    run(claim())


def test_the_wait_for_a_group_at_its_age_limit_is_told_even_once_it_has_come() -> None:
    async def claim() -> None:
        target = store(staleness=0)
        for index, version in ((0, 0), (1, 1), (2, 1)):
            await target.group_started(index, PolicyVersion(version))
        for index in (1, 2):
            await target.add_group(group(index, started=1), partial=False)
        first = await target.take(0, 5.0)
        assert (first.groups, first.late) == ((1,), (0,)), "the last place is kept for group 0"
        taking = asyncio.create_task(target.take(0, 5.0))
        await asyncio.sleep(0.02)
        await target.add_group(group(0), partial=False)
        second = await taking
        assert (second.groups, second.waited_for) == ((0,), (0,))
        assert second.late_s > 0.0

    run(claim())


def test_a_full_batch_takes_no_more_and_its_groups_serve_no_other_step() -> None:
    async def claim() -> None:
        target = store()
        await put(target, 0, 1, 2, 3)
        assert (await target.take(0, 1.0)).groups == (0, 1)
        assert (await target.take(0, 1.0)).groups == ()
        assert (await target.take(1, 1.0)).groups == (2, 3)

    run(claim())


def test_the_cursor_counts_a_batch_only_once_it_is_trained_and_no_group_is_ever_lost_from_the_account() -> None:
    async def claim() -> None:
        target = store()
        await put(target, 0, 1, 2)
        await target.group_started(3, PolicyVersion(0))
        await target.take(0, 1.0)
        assert (await target.cursor()).next_index == 0
        await target.mark_trained(batch_name(0))
        assert await target.cursor() == PromptCursor(next_index=2, untrained=())
        await target.group_started(4, PolicyVersion(0))
        await target.drop_group(4)
        counts = await target.counts()
        assert counts.running + counts.ready + counts.taken + counts.trained + counts.dropped == 5
        assert (counts.running, counts.ready, counts.trained) == (1, 1, 2)

    run(claim())


def test_samples_without_signal_or_lost_to_infrastructure_stay_out_of_the_training_batch() -> None:
    async def claim() -> None:
        target = store()
        lost = Failure(kind=FailureKind.ENGINE, message="died")
        for index, samples in enumerate([(sample(0, 0.5), sample(0, -0.5), sample(0, None, lost)), (sample(1, 0.0),)]):
            await target.group_started(index, PolicyVersion(0))
            await target.add_group(group(index, *samples), partial=True)
        await target.take(0, 1.0)
        sequences = await target.sequences(batch_name(0), await target.group_indices(batch_name(0)))
        assert [s.advantage for s in sequences] == [0.5, -0.5]

    run(claim())


def test_every_trajectory_of_a_step_is_counted_by_id() -> None:
    async def claim() -> None:
        target = store()
        lost = Failure(kind=FailureKind.ENGINE, message="died")
        teaching = (named("a", 0.5), named("b", -0.5), named("c", None, lost))
        for index, samples in enumerate([teaching, (named("d", 0.0),)]):
            await target.group_started(index, PolicyVersion(0))
            await target.add_group(group(index, *samples), partial=True)
        await target.take(0, 1.0)
        await target.mark_trained(batch_name(0), Receipt(parts=((0,), (1,)), trained=(1, 0)))
        expected = TrajectoryAudit(taken=4, trained=2, without_signal=1, failed=1)
        assert await target.audit() == expected
        await target.mark_trained(batch_name(0), Receipt(parts=((0,), (1,)), trained=(1, 0)))
        assert await target.audit() == expected, "a batch is booked once"

    run(claim())


@pytest.mark.parametrize(
    ("again", "trained", "lost", "doubled"),
    [
        ((), (0,), 1, 0),
        ((1,), (0, 2), 0, 0),
        ((1,), (0, 1, 2), 0, 1),
        ((0, 1), (2, 3), 0, 0),
    ],
)
def test_what_a_lost_replica_held_counts_once_when_the_core_trained_it_again(
    again: tuple[int, ...], trained: tuple[int, ...], lost: int, doubled: int
) -> None:
    async def claim() -> None:
        target = store()
        for index, name in enumerate("ab"):
            await target.group_started(index, PolicyVersion(0))
            await target.add_group(group(index, named(name, 1.0)), partial=False)
        await target.take(0, 1.0)
        sequences = await target.numbered(batch_name(0), ((1,), (0,)), (1,))
        assert [sequence.group_index for sequence in sequences] == [0], "the second that was given is of the first group"
        await target.mark_trained(batch_name(0), Receipt(parts=((1,), (0,)), again=again, trained=trained))
        audit = await target.audit()
        assert (audit.lost, audit.doubled) == (lost, doubled)

    run(claim())


def named(name: str, advantage: float | None, failure: Failure | None = None) -> Trajectory:
    return replace(sample(0, advantage, failure), trajectory_id=TrajectoryId(name))
