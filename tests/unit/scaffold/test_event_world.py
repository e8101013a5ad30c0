"""The event simulation that plans are scored against, on cases small enough to count by hand."""

import importlib.util
from types import ModuleType

import numba
import numpy as np
import pytest

from support import event_world
from support.event_world import Engines, Pace, World


def _uncompiled() -> ModuleType:
    """The same code, run by Python: compiling it takes twenty seconds, and these cases have a hundred events."""
    spec = importlib.util.find_spec(event_world.__name__)
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "DISABLE_JIT", True)
        spec.loader.exec_module(plain)
    return plain


PLAIN = _uncompiled()
iteration_s, step_ends_s = PLAIN.iteration_s, PLAIN.step_ends_s
LAW = {"a_s": 0.01, "b_s": 0.0, "c_s": 1e-12, "prefill_s": 0.0, "prefill_pair_s": 0.0}
ALONE = Engines(**LAW, engines=1, slots=64)


def world(generated: list[float], train_s: float = 1.0, kind: list[int] | None = None) -> World:
    """Trajectories of one turn."""
    num = len(generated)
    return World(
        prompt=np.full(num, 10.0),
        first_turn=np.arange(num),
        turns=np.ones(num, np.int64),
        generated=np.array(generated),
        returned=np.zeros(num),
        tool_s=np.zeros(num),
        train_s=np.full(num, train_s),
        kind=np.zeros(num, np.int64) if kind is None else np.array(kind),
    )


def pace(**changes: float) -> Pace:
    values = {
        "batch": 4,
        "group": 2,
        "staleness": 0,
        "slack": 0,
        "streamed": False,
        "steps": 6,
        "fixed_s": 0.5,
        "publication_s": 0.25,
    }
    return Pace(**(values | changes))  # type: ignore[arg-type]


def test_a_synchronous_step_is_rollout_training_and_publication() -> None:
    ends = step_ends_s(world([100.0, 300.0, 200.0, 100.0] * 7), [ALONE], pace())
    assert np.diff(ends) == pytest.approx(3.0 + 4 * 1.0 + 0.5 + 0.25)


def test_a_trainer_that_is_slower_than_the_fleet_sets_the_pace() -> None:
    assert iteration_s(world([100.0] * 32, train_s=3.0), [ALONE], pace(staleness=2)) == pytest.approx(12.5)


def test_a_streamed_step_trains_what_has_landed() -> None:
    whole, streamed = (
        iteration_s(world([100.0, 100.0, 500.0, 500.0] * 7), [ALONE], pace(streamed=kind)) for kind in (False, True)
    )
    assert whole - streamed == pytest.approx(2.0), "the first group is trained while the second is generated"


def test_colocated_engines_stand_still_while_the_trainer_works() -> None:
    generated = [100.0, 300.0, 200.0, 100.0] * 8
    beside = iteration_s(world(generated, train_s=0.25), [ALONE], pace(staleness=1))
    in_turns = iteration_s(world(generated, train_s=0.25), [ALONE], pace(staleness=1, colocated=True, publication_s=2.0))
    assert beside < 3.0 + 1.5 + 0.25
    assert in_turns == pytest.approx(1.5 + 2.0 + 1.5, abs=0.6), "training, switch, and half of the longest of two batches"


def test_slack_lets_a_late_group_be_late() -> None:
    generated = [100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 1200.0, 1200.0] * 5
    strict, slack = (iteration_s(world(generated), [ALONE], pace(staleness=1, slack=X), skip=2) for X in (0, 1))
    assert slack < strict - 0.5
    none = [iteration_s(world(generated), [ALONE], pace(slack=X), skip=2) for X in (0, 1)]
    assert none[0] == none[1], "without staleness a step needs every group"


def test_two_classes_that_are_alike_are_one_fleet() -> None:
    generated = list(np.random.default_rng(0).integers(50, 500, 28).astype(float))
    one = iteration_s(world(generated), [Engines(**LAW, engines=2, slots=8)], pace())
    halves = iteration_s(world(generated, kind=[0, 1] * 14), [Engines(**LAW, engines=1, slots=8)] * 2, pace())
    assert one == pytest.approx(halves)


def test_a_trajectory_is_served_by_its_class() -> None:
    slow = Engines(**(LAW | {"a_s": 0.1}), engines=1, slots=8)
    right, wrong = (
        iteration_s(world([100.0, 10.0] * 14, kind=kind * 14), [ALONE, slow], pace(), skip=1) for kind in ([0, 1], [1, 0])
    )
    assert right == pytest.approx(1.0 + 4.75, abs=0.01)
    assert wrong == pytest.approx(10.0 + 4.75, abs=0.01)


def test_a_full_engine_keeps_the_rest_waiting() -> None:
    one_slot = Engines(**LAW, engines=1, slots=1)
    assert iteration_s(world([100.0] * 28), [one_slot], pace()) == pytest.approx(4 * 1.0 + 4.75)


@pytest.mark.slow
def test_compiled_it_is_the_same() -> None:
    random = np.random.default_rng(1)
    turns = random.integers(1, 5, 96)
    drawn = {name: random.integers(10, 300, turns.sum()).astype(float) for name in ("generated", "returned", "tool_s")}
    firsts = np.cumsum(turns) - turns
    busy = World(prompt=np.full(96, 20.0), first_turn=firsts, turns=turns, **drawn, train_s=np.ones(96), kind=np.arange(96) % 2)
    fleet = [Engines(**LAW, engines=2, slots=3), Engines(**(LAW | {"b_s": 0.001}), engines=1, slots=8)]
    for of in (pace(staleness=1, streamed=True, steps=12), pace(slack=1, staleness=1), pace(colocated=True)):
        assert event_world.step_ends_s(busy, fleet, of) == pytest.approx(step_ends_s(busy, fleet, of), rel=1e-9)
