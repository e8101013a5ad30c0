"""What hybrid replicas can do wrong and what it costs: the core finishes with the right weights, at most one deadline later."""

from pathlib import Path

import pytest

from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.verification.models import build_model_folder
from libra_core.engines.verification.worlds import layout
from support.elastic_scripts import CoreScript, Fault, HybridScript
from support.elastic_worlds import Outcome, core_spec, reference, run_elastic, trained_once

pytestmark = pytest.mark.integration
STEPS = 8
DEADLINE_S = 6.0
GRACE_S = 4.0


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model_folder(tmp_path_factory.mktemp("models") / "qwen3", family="qwen3", tied=True)


def failing(kind: str, *, rank: int = 0) -> HybridScript:
    """Active from step 3; the fault is in its second contribution, to step 4."""
    return HybridScript(join_at=1, faults=(Fault(at=2, kind=kind, rank=rank),))


def check(core: TrainerSpec, outcome: Outcome) -> None:
    """Each step's weights are those of one replica with the recorded membership, and no sample is lost or trained twice."""
    assert [step.digest for step in outcome.steps] == reference(core, outcome)["digests"]
    assert trained_once(outcome)


def test_half_a_contribution_of_a_killed_replica_does_not_exist(model: Path, tmp_path: Path) -> None:
    core = core_spec(model, layout(dp=2), contribution_s=120.0)
    outcome = run_elastic(core, tmp_path, [failing("half then kill")], CoreScript(steps=STEPS))
    assert outcome.members == [0, 0, 0, 1, 0, 0, 0, 0]
    assert outcome.steps[4].dropped == (0,)
    assert outcome.hybrids == [[None]]
    assert max(outcome.waits[0]) < 60.0, "its end is seen at once, not at the deadline"
    lost = outcome.steps[4].given[-1]
    assert lost
    assert set(lost) <= {number for replica in outcome.steps[5].given for number in replica}, "the next step takes them first"
    check(core, outcome)


def test_the_core_can_train_in_the_same_step_what_a_lost_replica_held(model: Path, tmp_path: Path) -> None:
    core = core_spec(model, layout(dp=2), contribution_s=120.0)
    outcome = run_elastic(core, tmp_path, [failing("kill")], CoreScript(steps=6, retrain=True))
    assert outcome.members == [0, 0, 0, 1, 0, 0]
    assert outcome.steps[4].dropped == (0,)
    assert outcome.book.waiting == []
    assert set(outcome.book.trained) == set(range(18)), "every batch is whole in its own step"
    check(core, outcome)


@pytest.mark.parametrize(
    "kind", ["hang", pytest.param("half then hang", marks=pytest.mark.slow), pytest.param("stop", marks=pytest.mark.slow)]
)
def test_a_silent_replica_costs_exactly_one_deadline(model: Path, tmp_path: Path, kind: str) -> None:
    core = core_spec(model, layout(dp=2), contribution_s=DEADLINE_S)
    outcome = run_elastic(core, tmp_path, [failing(kind)], CoreScript(steps=STEPS))
    assert outcome.members == [0, 0, 0, 1, 0, 0, 0, 0]
    assert DEADLINE_S <= sum(outcome.waits[0][4:]) < DEADLINE_S + GRACE_S
    assert outcome.closed[0] == {0: f"no contribution to step 4 within {DEADLINE_S} s"}
    check(core, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["other epoch", "other step", "twice"])
def test_messages_that_are_stale_repeated_or_of_another_step_change_nothing(model: Path, tmp_path: Path, kind: str) -> None:
    core = core_spec(model, layout(dp=2))
    outcome = run_elastic(core, tmp_path, [failing(kind)], CoreScript(steps=STEPS))
    assert outcome.members == [0, 0, 0, 1, 1, 1, 1, 1]
    check(core, outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "why"), [("other share", "instead of the"), ("other version", "other numbers than this version")]
)
def test_a_contribution_that_is_not_what_was_asked_for_is_refused(model: Path, tmp_path: Path, kind: str, why: str) -> None:
    core = core_spec(model, layout(dp=2))
    outcome = run_elastic(core, tmp_path, [failing(kind)], CoreScript(steps=STEPS))
    assert outcome.members == [0, 0, 0, 1, 0, 0, 0, 0]
    assert why in str(outcome.closed[0][0])
    check(core, outcome)


@pytest.mark.slow
def test_a_replica_with_a_wrong_secret_stays_out(model: Path, tmp_path: Path) -> None:
    core = core_spec(model, layout(dp=2))
    stranger = HybridScript(join_at=1, secret=b"x" * 32)
    outcome = run_elastic(core, tmp_path, [stranger], CoreScript(steps=STEPS))
    assert outcome.members == [0] * STEPS
    assert "does not hold this run's secret" in outcome.hybrids[0][0]["errors"][0]
    assert len(outcome.refused[0]) == 1
    check(core, outcome)


@pytest.mark.slow
def test_a_snapshot_that_is_seven_steps_late_is_caught_up(model: Path, tmp_path: Path) -> None:
    core = core_spec(model, layout(dp=2))
    late = HybridScript(join_at=1, restore_at=10)
    outcome = run_elastic(core, tmp_path, [late], CoreScript(steps=14, patient_from=10))
    (answer,) = outcome.hybrids[0]
    (join,) = answer["joins"]
    assert (join.snapshot_version, join.replayed, join.active_from) == (2, 9, 11)
    assert outcome.members == [0] * 11 + [1] * 3
    assert max(outcome.waits[0][:11]) < 1.0
    check(core, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["half then kill", "kill"])
def test_a_replica_killed_on_one_shard_is_dropped_on_both(model: Path, tmp_path: Path, kind: str) -> None:
    core = core_spec(model, layout(tp=2), contribution_s=120.0)
    outcome = run_elastic(core, tmp_path, [failing(kind, rank=1)], CoreScript(steps=STEPS))
    assert outcome.members == [0, 0, 0, 1, 0, 0, 0, 0]
    assert outcome.hybrids[0][1] is None
    check(core, outcome)


@pytest.mark.slow
def test_weights_that_differ_are_found_and_fetched_again(model: Path, tmp_path: Path) -> None:
    core = core_spec(model, layout(dp=2), check_every_steps=1)
    script = HybridScript(join_at=1, corrupt_at=1, rejoin=True)
    outcome = run_elastic(core, tmp_path, [script], CoreScript(steps=9))
    (answer,) = outcome.hybrids[0]
    assert answer["errors"] == ["its weights differ from the core's at version 5; it needs a fresh snapshot"]
    assert len(answer["joins"]) == 2
    assert outcome.members[:7] == [0, 0, 0, 1, 1, 0, 0]
    assert outcome.members[-1] == 1, "one step sooner or later, as the core sees the replica's end before or in step 5"
    assert answer["digest"] == outcome.steps[-1].digest
    assert trained_once(outcome)


@pytest.mark.slow
def test_a_killed_replica_is_replaced_by_another(model: Path, tmp_path: Path) -> None:
    core = core_spec(model, layout(dp=2), slots=2, contribution_s=120.0)
    scripts = [failing("kill"), HybridScript(slot=1, join_at=5)]
    outcome = run_elastic(core, tmp_path, scripts, CoreScript(steps=11))
    assert [step.counted for step in outcome.steps] == [(), (), (), (0,), (), (), (), (1,), (1,), (1,), (1,)]
    check(core, outcome)
