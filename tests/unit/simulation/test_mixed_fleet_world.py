"""The event simulation behind tests/benchmarks/mixed_fleet.py: nothing is lost, and its times are those of its laws."""

import pytest

from libra_core.routing.least_loaded import LeastLoaded
from support.fleet_workloads import fleet_groups
from support.mixed_fleet_world import LAWS, MixedFleetWorld, Pace
from support.recordings import Scripted, recorded

PACE = Pace(groups_per_step=4, steps=5, skip=1)


@pytest.mark.parametrize("name", ["search", "math", "r2e"])
def test_nothing_is_lost(name: str) -> None:
    groups = fleet_groups(name, groups=24, group=4, prompts=6, seed=0)
    world = MixedFleetWorld(groups, ((1, 2), (2, 1)), LeastLoaded(0), PACE)
    result = world.run()
    assert result.unfinished == 0
    assert result.tokens_per_s > 0
    trained = [index for index, done in enumerate(world.trained) if done]
    assert len(trained) == PACE.steps * PACE.groups_per_step
    assert all(not world.left[group] for group in trained)
    for load, engine in zip(world.loads, world.engines, strict=True):
        assert load.in_flight == engine.bound <= engine.slots


def test_a_trajectory_alone_takes_prefill_and_its_steps() -> None:
    law = LAWS[1]
    pace = Pace(groups_per_step=1, steps=2, skip=1, staleness=0, publication_s=0.0)
    groups = [[recorded("p", 500, sample=number)] for number in range(3)]
    result = MixedFleetWorld(groups, ((1, 1),), LeastLoaded(0), pace).run()
    decode = 500 * (law.a_s + law.b_s + law.c_s * 100) + law.c_s * 500**2 / 2
    assert result.step_s == pytest.approx(law.prefill_s * 100 + decode + pace.train_s([600]), rel=1e-6)


def test_moves_prefill_the_whole_context_again() -> None:
    groups = [[recorded("p", 50, 50, sample=number)] for number in range(12)]
    pace = Pace(groups_per_step=2, steps=4, skip=1, staleness=0)
    stay = MixedFleetWorld(groups, ((1, 1), (2, 1)), Scripted(lambda turn: 0), pace).run()
    move = MixedFleetWorld(groups, ((1, 1), (2, 1)), Scripted(lambda turn: len(turn.tool_returns)), pace).run()
    assert (stay.moves, stay.migrated_share) == (0, 0.0)
    assert move.moves == 8
    assert move.migrated_share == pytest.approx(200 / 250)
