"""The store forms batches, hands out each group once and knows what a resume must issue again."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from libra_core.runtime.admission import PromptCursor
from libra_core.runtime.store import StoreSpec, TrajectoryStoreActor, batch_name
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import GroupId, PolicyVersion, PromptId, TrajectoryId
from libra_core.types.trajectory import Failure, FailureKind, FinishReason, Prompt, Trajectory, VersionSegment

START = PromptCursor(next_index=0, untrained=())


def store(*, staleness: int = 1, drop: bool = True) -> TrajectoryStoreActor:
    return TrajectoryStoreActor(StoreSpec(groups_per_step=2, staleness=staleness, drop_groups_without_signal=drop), START)


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


def group(index: int, *samples: Trajectory) -> TrajectoryGroup:
    prompt = Prompt(prompt_id=PromptId(str(index)), token_ids=(1,), text="", answers=())
    return TrajectoryGroup(
        index=index, prompt=prompt, started_version=PolicyVersion(0), trajectories=samples or (sample(index, 1.0),)
    )


async def put(target: TrajectoryStoreActor, *indices: int) -> None:
    for index in indices:
        await target.group_started(index, PolicyVersion(0))
        await target.add_group(group(index), partial=False)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_take_waits_for_the_last_group() -> None:
    async def claim() -> None:
        target = store()
        await put(target, 0)
        taking = asyncio.create_task(target.take(0, 5.0))
        await asyncio.sleep(0.01)
        assert not taking.done()
        await put(target, 1)
        assert (await taking).chosen == (0, 1)

    run(claim())


def test_take_past_its_time_names_the_groups_at_their_age_limit() -> None:
    async def claim() -> None:
        target = store(staleness=0)
        await put(target, 0)
        await target.group_started(1, PolicyVersion(0))
        assert (await target.take(0, 0.02)).late == (1,)

    run(claim())


def test_a_taken_batch_can_be_taken_again_but_its_groups_serve_no_other_step() -> None:
    async def claim() -> None:
        target = store()
        await put(target, 0, 1, 2, 3)
        first = await target.take(0, 1.0)
        assert await target.take(0, 1.0) == first
        assert (await target.take(1, 1.0)).chosen == (2, 3)

    run(claim())


def test_the_cursor_counts_a_batch_only_once_it_is_trained() -> None:
    async def claim() -> None:
        target = store()
        await put(target, 0, 1, 2, 3)
        await target.take(0, 1.0)
        assert (await target.cursor()).next_index == 0
        await target.mark_trained(batch_name(0))
        assert await target.cursor() == PromptCursor(next_index=2, untrained=())

    run(claim())


def test_samples_without_signal_or_lost_to_infrastructure_stay_out_of_the_training_batch() -> None:
    async def claim() -> None:
        target = store()
        lost = Failure(kind=FailureKind.ENGINE, message="died")
        for index, samples in enumerate([(sample(0, 0.5), sample(0, -0.5), sample(0, None, lost)), (sample(1, 0.0),)]):
            await target.group_started(index, PolicyVersion(0))
            await target.add_group(group(index, *samples), partial=True)
        await target.take(0, 1.0)
        batch = await target.training_batch(batch_name(0), PolicyVersion(0))
        assert [s.advantage for s in batch.sequences] == [0.5, -0.5]

    run(claim())
