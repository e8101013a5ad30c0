"""Admission, the trainer, conservation, determinism, transitions and failures of whole worlds."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.runtime.rollout.admission import StepWindow, select_groups
from libra_core.simulation.truth import Truth
from libra_core.simulation.world import EngineFailure, World
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from support.simulation import agents, finished, pacing, plan, truth


@pytest.mark.parametrize(
    "how",
    [
        {"staleness": 0},
        {"staleness": 1},
        {"staleness": 2, "age_slack": 1, "streamed": True},
        {"staleness": 0, "colocated": True},
        {"staleness": 1, "colocated": True},
    ],
)
def test_every_group_issued_is_trained_once_or_still_under_way(how: dict[str, object]) -> None:
    work = agents(512)
    world = finished(work, pacing(64, **how), plan(engines=2), steps=7)
    groups = world.state.groups
    trained = Counter(int(step) for step in groups.step if step >= 0)
    assert trained == dict.fromkeys(range(7), 16)
    issued = int(world.state.run[0].issued) // 4
    assert issued == int((groups.version >= 0).sum())
    assert issued <= (int(how["staleness"]) + 7 + 1) * 16
    rows = world.state.trajectories[: issued * 4]
    done = rows.generated[rows.finished_s > 0]
    assert done == pytest.approx(work.total_generated[: issued * 4][rows.finished_s > 0])


@pytest.mark.parametrize(("slack", "streamed"), [(0, False), (0, True), (1, True), (2, False)])
def test_no_group_is_trained_beyond_its_age_limit(slack: int, streamed: bool) -> None:
    world = finished(agents(512), pacing(64, staleness=1, age_slack=slack, streamed=streamed), plan(engines=2))
    groups = world.state.groups[: int(world.state.run[0].version) * 16]
    assert (groups.step - groups.version).max() <= 1 + slack


def test_same_seed_twice_is_bit_identical() -> None:
    ends = [finished(agents(512, seed=3), pacing(64, staleness=1), plan(engines=3)).state for _ in range(2)]
    assert ends[0].steps.tobytes() == ends[1].steps.tobytes()
    assert ends[0].trajectories.tobytes() == ends[1].trajectories.tobytes()


def test_streaming_and_slack_never_slow_a_run_down_much_and_keep_the_mean_age() -> None:
    work = agents(1024, seed=5)
    strict = finished(work, pacing(64, staleness=1), plan(engines=2))
    both = finished(work, pacing(64, staleness=1, age_slack=1, streamed=True), plan(engines=2))
    ages = [float(w.state.steps.staleness[:16].sum() / w.state.steps.trajectories[:16].sum()) for w in (strict, both)]
    assert both.now_s < strict.now_s * 1.05
    assert ages[1] <= ages[0] + 0.2


def test_a_transition_keeps_every_token() -> None:
    work = agents(512)
    world = World(truth(), work, pacing(64, staleness=1), plan(engines=3, tp=2))
    world.run_to(2)
    world.apply(Plan(train=TrainLayout(tp=4, dp=2), rollout=RolloutLayout(engines=((4, 1), (2, 1)))), engine_s=20, trainer_s=5)
    world.run_to(world.steps)
    rows = world.state.trajectories
    assert rows.generated == pytest.approx(work.total_generated)
    assert sorted(world.state.engines.tp[world.alive()].tolist()) == [2, 4]
    assert world.state.run[0].reprefilled_tokens > 0


def test_a_dead_engine_costs_its_turns_and_nothing_else() -> None:
    work = agents(512)
    quiet = finished(work, pacing(64, staleness=1), plan(engines=3))
    world = World(
        truth(), work, pacing(64, staleness=1), plan(engines=3), failures=[EngineFailure(at_s=10.0, engine=1, outage_s=60.0)]
    )
    world.run_to(world.steps)
    assert world.state.run[0].lost_tokens > 0
    assert world.state.trajectories.generated == pytest.approx(work.total_generated)
    assert world.now_s > quiet.now_s


def test_a_transition_holds_the_trainer_back() -> None:
    work = agents(512)
    still = World(truth(), work, pacing(64, staleness=1), plan(engines=3))
    moved = World(truth(), work, pacing(64, staleness=1), plan(engines=3))
    for world in (still, moved):
        world.run_to(2)
    moved.apply(moved.plan, engine_s=0.0, trainer_s=500.0)
    still.run_to(3)
    moved.run_to(3)
    assert moved.now_s >= still.now_s + 400


def slow_to_publish(seconds: float, sending: float) -> Truth:
    usual = truth(publication_s=seconds)
    return usual.model_copy(update={"publication": usual.publication.model_copy(update={"trainer_sends_s": sending})})


def test_an_overlapped_publication_keeps_the_trainer_only_while_it_sends() -> None:
    work, how, busy = agents(1024), pacing(64, staleness=4, streamed=True), plan(engines=8)
    waiting, overlapped = (
        finished(work, replace(how, overlap=overlap), busy, world_truth=slow_to_publish(8.0, 2.0)) for overlap in (False, True)
    )
    assert waiting.state.steps.blocked_s[5:12] == pytest.approx(8.0)
    assert overlapped.state.steps.blocked_s[5:12] == pytest.approx(2.0)
    assert overlapped.now_s < waiting.now_s - 4 * 6.0
    groups = overlapped.state.groups[: int(overlapped.state.run[0].version) * 16]
    assert (groups.step - groups.version).max() <= 4


def test_the_next_publication_waits_for_the_end_of_the_one_before() -> None:
    how = pacing(64, staleness=4, streamed=True, overlap=True)
    world = finished(agents(1024), how, plan(engines=8), world_truth=slow_to_publish(500.0, 0.0))
    assert np.diff(world.state.steps.ended_s[: world.version]).min() >= 500.0


@given(st.integers(0, 10_000), st.integers(0, 2), st.integers(0, 2))
@settings(max_examples=25, deadline=None)
def test_the_trainer_takes_the_groups_that_the_real_store_would(seed: int, staleness: int, slack: int) -> None:
    """At each step end: the groups of the next step that are ready by then are what `select_groups` gives."""
    world = World(truth(), agents(256, seed=seed), pacing(32, staleness=staleness, age_slack=slack), plan(engines=2))
    for version in range(1, 5):
        world.run_to(version)
        groups, issued = world.state.groups, int(world.state.run[0].issued) // 4
        open_groups = [g for g in range(issued) if groups.step[g] < 0]
        ready = {g: int(groups.version[g]) for g in open_groups if groups.finished[g] == 4}
        in_flight = {g: int(groups.version[g]) for g in open_groups if groups.finished[g] < 4}
        window = StepWindow(step=version, groups_per_step=8, staleness=staleness, age_slack=slack)
        expected = select_groups(ready, in_flight, window, places=8).chosen
        before = set(np.flatnonzero(groups.step == version).tolist())
        world_taken = _taken_now(world)
        assert before == set()
        assert world_taken == set(expected)


def _taken_now(world: World) -> set[int]:
    from libra_core.simulation.kernel.trainer import take_and_train

    issued_before = int(world.state.run[0].issued)
    take_and_train(world.state)
    assert int(world.state.run[0].issued) == issued_before
    return set(np.flatnonzero(world.state.groups.step == world.version).tolist())


def test_decode_time_is_the_law_of_the_steps_tokens_and_contexts_that_engines_counted() -> None:
    world = finished(agents(512), pacing(64, staleness=1), plan(engines=3))
    for engine in world.state.engines[world.alive()]:
        by_law = engine.a_s * engine.decode_steps + engine.b_s * engine.decode_tokens + engine.c_s * engine.decode_context
        assert engine.decode_s == pytest.approx(by_law, rel=1e-6)
        assert engine.decode_steps > 0
