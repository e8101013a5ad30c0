"""Where the time of trainer and engines went: the parts of every run add up to the whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.simulation.world import EngineFailure, World
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from support.breakdowns import require_breakdowns_that_add_up
from support.simulation import agents, pacing, plan, truth


def check(world: World) -> None:
    steps = world.state.steps[: world.version]
    took_s = np.diff(steps.ended_s, prepend=0.0)
    assert steps.train_s + steps.waited_s + steps.blocked_s == pytest.approx(took_s, abs=1e-6)
    assert (steps.waited_age_s <= steps.waited_s + 1e-6).all()
    assert min(steps.waited_age_s.min(), steps.waited_s.min(), steps.blocked_s.min()) >= 0.0
    fleet = world.fleet_time()
    spent_s = fleet.decode_s + fleet.prefill_s + fleet.reprefill_s + fleet.paused_s
    assert min(fleet.decode_s, fleet.prefill_s, fleet.reprefill_s, fleet.paused_s) >= -1e-6
    assert spent_s <= fleet.alive_s * (1 + 1e-9) + 1e-6, "and the rest is starved"


@given(
    seed=st.integers(0, 10_000),
    staleness=st.integers(0, 4),
    slack=st.integers(0, 2),
    kind=st.sampled_from(["whole", "streamed", "colocated"]),
    overlap=st.booleans(),
    moves=st.sets(st.integers(1, 6), max_size=3),
    outages=st.lists(st.floats(1.0, 200.0), max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_every_second_of_trainer_and_engines_is_in_one_part(
    seed: int, staleness: int, slack: int, kind: str, overlap: bool, moves: set[int], outages: list[float]
) -> None:
    how = pacing(
        32, staleness=staleness, age_slack=slack, streamed=kind == "streamed", colocated=kind == "colocated", overlap=overlap
    )
    failures = [EngineFailure(at_s=at_s, engine=number % 3, outage_s=20.0) for number, at_s in enumerate(sorted(outages))]
    world = World(truth(publication_s=3.0), agents(320, seed=seed), how, plan(engines=3), failures=failures)
    for version in range(1, 8):
        world.run_to(version)
        if version in moves:
            engines = ((4, 1), (2, 1)) if len(world.plan.rollout.engines) == 1 else ((2, 3),)
            other = Plan(train=TrainLayout(tp=4, dp=2), rollout=RolloutLayout(engines=engines))
            world.apply(other, engine_s=20.0, trainer_s=5.0)
    check(world)


def test_the_accounts_of_every_system_of_the_study_add_up() -> None:
    """With much staleness; tests/integration/simulation/test_study.py looks at little."""
    require_breakdowns_that_add_up(staleness=4)
