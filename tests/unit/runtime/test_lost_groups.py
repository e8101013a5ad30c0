"""What tools, rewards and engines lose: groups in a row end the run, and no prompt is lost for good or trained twice."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.config.loading import validate_config
from libra_core.errors import ResourceError, RolloutError
from libra_core.runtime.base.background import BackgroundTasks
from libra_core.runtime.driver.rollout_client import RolloutClient
from libra_core.runtime.rollout import coordinator as coordinator_module
from libra_core.runtime.rollout.admission import IssuedPrompt, PromptCursor, PromptQueue
from libra_core.runtime.rollout.coordinator import RolloutCoordinatorActor
from libra_core.runtime.rollout.group_runner import LostGroups, judge_group
from libra_core.runtime.rollout.scorer import score_one
from libra_core.runtime.rollout.store import StoreSpec, TrajectoryStoreActor, batch_name
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import GroupId, PolicyVersion, PromptId, TrajectoryId
from libra_core.types.trajectory import Failure, FailureKind, FinishReason, Prompt, Trajectory
from support.actors import DIES, HANGS, FakeActor

SOON_S = 0.05
START = PromptCursor(next_index=0, untrained=())


def prompt(index: int) -> Prompt:
    return Prompt(prompt_id=PromptId(str(index)), token_ids=(1, 2), text="?", answers=())


def sample(group: int, number: int, *, attempt: int = 0, failure: Failure | None = None) -> Trajectory:
    return Trajectory(
        trajectory_id=TrajectoryId(f"g{group:06d}.{number}.{attempt}"),
        group_id=GroupId(f"g{group:06d}"),
        prompt_id=PromptId(str(group)),
        sample_index=number,
        token_ids=(1, 2),
        loss_mask=(0, 1),
        logprobs=(0.0, -1.0),
        prompt_tokens=1,
        versions=(),
        turns=1,
        tool_returns=(),
        finish_reason=FinishReason.STOP,
        engine_history=(),
        started_s=0.0,
        finished_s=float(number),
        reward=None if failure else 1.0,
        advantage=None if failure else 1.0,
        failure=failure,
    )


def group(index: int, *failures: Failure) -> TrajectoryGroup:
    samples = [sample(index, number, failure=failure) for number, failure in enumerate(failures)] or [sample(index, 0)]
    return TrajectoryGroup(index=index, prompt=prompt(index), started_version=PolicyVersion(0), trajectories=tuple(samples))


def no_reward(message: str) -> Failure:
    return Failure(kind=FailureKind.SCORER, message=message)


def test_so_many_groups_in_a_row_end_the_run_with_what_the_newest_died_of() -> None:
    lost = LostGroups(3)
    for index in range(2):
        lost.lose(group(index, no_reward("old")))
    lost.keep()
    for index in range(2, 4):
        lost.lose(group(index, no_reward("old")))
    assert lost.verdict is None, "one between them could be trained"
    lost.lose(group(7, no_reward("older"), no_reward("ValueError: the reward server is down\nTraceback")))
    assert lost.verdict == (
        "3 groups in a row were lost (rollout.max_lost_groups = 3); of the newest, group 7, its reward failed: ValueError: the "
        "reward server is down Traceback; mend that and resume the run, which issues the lost prompts again"
    )


def test_a_lost_prompt_comes_back_with_the_next_version_and_waits_longer_each_time() -> None:
    queue = PromptQueue(PromptCursor(next_index=5, untrained=(2,)))
    assert [queue.next(0).index for _ in range(3)] == [2, 5, 6]
    queue.lose(5, 0)
    assert queue.next(0).index == 7, "it would meet the same outage"
    assert queue.next(1) == IssuedPrompt(index=5, losses=1)
    queue.lose(5, 1)
    assert [queue.next(2).index, queue.next(3).index] == [8, 5]
    queue.lose(5, 3)
    assert [queue.next(6).index, queue.next(7)] == [9, IssuedPrompt(index=5, losses=3)]


def test_lost_prompts_and_new_ones_take_turns_so_that_bad_ones_do_not_come_in_a_row() -> None:
    queue = PromptQueue(START)
    for index in [queue.next(0).index for _ in range(3)]:
        queue.lose(index, 0)
    assert [queue.next(1).index for _ in range(7)] == [0, 3, 1, 4, 2, 5, 6]


def run(claim: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(claim(), 20.0))


class World:
    """Issue, loss, training and resume as coordinator, store and checkpoint do them; a group ends as `ends` says."""

    def __init__(self) -> None:
        self.version = 0
        self.trained: list[int] = []
        self.begin(START)

    def begin(self, cursor: PromptCursor) -> None:
        self.queue = PromptQueue(cursor)
        self.store = TrajectoryStoreActor(
            StoreSpec(groups_per_step=2, staleness=1, age_slack=1, drop_groups_without_signal=False), cursor
        )
        self.running: list[int] = []

    async def issue(self) -> None:
        index = self.queue.next(self.version).index
        assert index not in self.running
        assert index not in self.trained
        self.running.append(index)
        await self.store.group_started(index, PolicyVersion(self.version))

    async def end(self, number: int, *, lost: bool) -> None:
        if not self.running:
            return
        index = self.running.pop(number % len(self.running))
        if lost:
            await self.store.drop_group(index)
            self.queue.lose(index, self.version)
        else:
            await self.store.add_group(group(index), partial=False)

    async def train(self) -> None:
        """When the batch is whole."""
        share = await self.store.take(self.version, 0.0)
        if share.places:
            return
        batch = batch_name(self.version)
        self.trained += await self.store.group_indices(batch)
        await self.store.mark_trained(batch)
        self.version += 1

    async def resume(self) -> None:
        self.begin(await self.store.cursor())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("issue"), st.integers(0, 9)),
        st.tuples(st.just("good"), st.integers(0, 9)),
        st.tuples(st.just("lost"), st.integers(0, 9)),
        st.tuples(st.just("train"), st.just(0)),
        st.tuples(st.just("resume"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_whatever_is_lost_and_resumed_every_prompt_is_trained_once_and_none_is_eaten(steps: list[tuple[str, int]]) -> None:
    async def claim() -> None:
        world = World()
        for name, number in steps:
            await (world.issue() if name == "issue" else _step(world, name, number))
        await world.resume()
        top = max(world.trained, default=-1) + 1
        for _ in range(40 * (top + 2)):  # without further losses
            await world.issue()
            await world.end(0, lost=False)
            await world.train()
        assert len(world.trained) == len(set(world.trained))
        assert set(range(top)) <= set(world.trained)

    run(claim)


async def _step(world: World, name: str, number: int) -> None:
    if name == "train":
        await world.train()
    elif name == "resume":
        await world.resume()
    else:
        await world.end(number, lost=name == "lost")


# --- the coordinator


class Prompts:
    def census(self) -> list[str]:
        return []

    def training(self, start: int) -> Iterator[Prompt]:
        yield prompt(start)


class Coordinator(RolloutCoordinatorActor):
    """Its groups have one sample each that ends at once; what scores them is the test's."""

    def __init__(self, folder: Path, score: Any, **rollout: Any) -> None:
        values = {"groups_per_step": 2, "group_size": 2, "score_deadline_s": SOON_S, "queue_deadline_s": SOON_S} | rollout
        super().__init__(
            validate_config({"rollout": values, "training": {"steps": 100}}), "", START, PolicyVersion(0), str(folder)
        )
        self.store, self.scorer, self.controller = FakeActor(), FakeActor(score_group=score), FakeActor()

    async def go(self) -> None:
        await self.attach(self.store, self.scorer, self.controller, [])
        await self.begin()

    def _runner(self, config: Any) -> Any:
        async def whole(index: int, asked: Prompt, version: PolicyVersion, losses: int) -> Any:
            unscored = [replace(sample(index, number, attempt=3 * losses), reward=None) for number in range(2)]
            made = TrajectoryGroup(index=index, prompt=asked, started_version=version, trajectories=tuple(unscored))
            self.started = [*getattr(self, "started", []), made.trajectories[0].trajectory_id]
            scored = await self._score(made)
            return scored, judge_group(len(scored.usable), 2, config.max_group_retries, config)

        return SimpleNamespace(run=whole)


@pytest.fixture(autouse=True)
def _no_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = SimpleNamespace(environment=None, prompts=Prompts(), notes=(), vocabulary=None, cut_mark=())
    monkeypatch.setattr(coordinator_module, "build_workload", lambda *_: workload)
    monkeypatch.setattr(coordinator_module, "CALL_DEADLINE_S", SOON_S)
    monkeypatch.setattr(coordinator_module, "GRACE_S", SOON_S)


class Broken:
    """A reward function that always raises."""

    async def score(self, _prompt: Prompt, _trajectory: Trajectory) -> float:
        raise ValueError("the reward server is down")


async def broken_score(made: TrajectoryGroup) -> TrajectoryGroup:
    limits = validate_config({}).rollout
    scored = [await score_one(Broken(), made.prompt, t, limits) for t in made.trajectories]  # type: ignore[arg-type]
    return replace(made, trajectories=tuple(scored))


async def good_score(made: TrajectoryGroup) -> TrajectoryGroup:
    return replace(made, trajectories=tuple(t.scored(1.0) for t in made.trajectories))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def client_of(actor: Coordinator) -> RolloutClient:
    client = object.__new__(RolloutClient)
    client._config = actor._config
    return client


def test_a_reward_function_that_always_raises_ends_the_run_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim() -> None:
        actor = Coordinator(tmp_path, broken_score, max_lost_groups=5)
        await actor.go()
        await until(lambda: actor._lost.verdict is not None)
        await asyncio.sleep(0.1)
        issued = len(actor.store.asked("group_started"))
        assert issued <= 5 + 2 * 2, "no further groups are started"
        state = await actor.state()
        client = client_of(actor)
        monkeypatch.setattr(client, "_fleet_state", lambda: state, raising=False)
        with pytest.raises(RolloutError, match=r"5 groups in a row .* its reward failed: .*the reward server is down") as failed:
            client._require_progress(0, SimpleNamespace(late=()), timed_out=False)  # type: ignore[arg-type]
        assert failed.value.exit_code == 3
        await actor.stop()

    run(claim)


def test_prompts_of_lost_groups_are_issued_again_in_the_run_with_ids_of_their_own(tmp_path: Path) -> None:
    outage = [True]

    async def score(made: TrajectoryGroup) -> TrajectoryGroup:
        return await (broken_score if outage[0] and made.index < 2 else good_score)(made)

    async def claim() -> None:
        actor = Coordinator(tmp_path, score)
        await actor.go()
        await until(lambda: len(actor.store.asked("add_group")) == 4)
        assert sorted(index for (index,) in actor.store.asked("drop_group")) == [0, 1]
        outage[0] = False
        for version in (1, 2):
            actor._version = PolicyVersion(version)
            actor._wake.set()
            await until(lambda version=version: len(actor.store.asked("add_group")) == 4 + 2 * version)
        assert sorted(made.index for made, _ in actor.store.asked("add_group")) == list(range(8))
        assert len(actor.started) == len(set(actor.started))
        await actor.stop()

    run(claim)


def test_a_scorer_that_hangs_is_named_while_it_is_waited_for_and_its_groups_are_lost(tmp_path: Path) -> None:
    async def claim() -> None:
        actor = Coordinator(tmp_path, None, max_lost_groups=1)
        actor.scorer.ill["score_group"] = HANGS
        await actor.go()
        await until(lambda: bool(actor.scorer.calls))
        waits = (await actor.state()).waits
        assert waits[0] == "group 0 waits 0 s for the scorer"
        await until(lambda: actor._lost.verdict is not None)
        assert "its reward failed: group 0 waited 0 s for the scorer and got no answer" in str(actor._lost.verdict)
        await actor.stop()

    run(claim)


@pytest.mark.parametrize(
    ("ill", "illness", "fault"),
    [
        ("store.group_started", HANGS, "the rollout coordinator waited 0 s for the trajectory store to start group 0 and got no"),
        ("store.add_group", DIES, "waited for the trajectory store to take group 0: the actor is gone"),
        ("scorer.score_group", DIES, "group 0 waited for the scorer: the actor is gone"),
    ],
)
def test_a_store_that_hangs_and_whoever_is_gone_end_the_step_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ill: str, illness: str, fault: str
) -> None:
    async def claim() -> None:
        actor = Coordinator(tmp_path, good_score)
        who, method = ill.split(".")
        getattr(actor, who).ill[method] = illness
        await actor.go()
        await until(lambda: actor._tasks.fault is not None)
        state = await actor.state()
        client = client_of(actor)
        monkeypatch.setattr(client, "_fleet_state", lambda: state, raising=False)
        with pytest.raises(ResourceError, match="step 0 cannot be filled, the rollout coordinator failed: ") as failed:
            client._require_progress(0, SimpleNamespace(late=()), timed_out=False)  # type: ignore[arg-type]
        assert fault in str(failed.value)
        await actor.stop()

    run(claim)


# --- work in the background


def test_background_work_that_fails_is_told_and_none_is_left_at_the_end() -> None:
    async def claim() -> None:
        told: list[str] = []
        tasks = BackgroundTasks("the tester", told.append)

        async def fail(sentence: str) -> None:
            raise LookupError(sentence)

        tasks.spawn(fail("first"))
        tasks.spawn(fail("second"))
        await tasks.all_ended()
        assert tasks.fault == "LookupError: first"
        assert told == ["LookupError: first", "LookupError: second"]
        waiting = tasks.spawn(asyncio.Event().wait())
        await tasks.end(1.0)
        assert waiting.cancelled()
        assert tasks.running == 0
        assert len(told) == 2, "what is cancelled has not failed"

    run(claim)


def test_work_that_does_not_end_keeps_nobody_waiting() -> None:
    async def claim() -> None:
        free = asyncio.Event()

        async def stubborn() -> None:
            while not free.is_set():
                try:
                    await free.wait()
                except asyncio.CancelledError:
                    continue

        tasks = BackgroundTasks("the tester")
        tasks.spawn(stubborn())
        await asyncio.sleep(0)
        await tasks.end(0.02)
        free.set()
        await tasks.all_ended()

    run(claim)
