"""Hybrid replicas join, train and leave real Megatron worlds: the weights are those of one replica with the same membership."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from libra_core.config.training import LayoutConfig, LossConfig
from libra_core.engines.verification.models import build_model_folder
from libra_core.engines.verification.worlds import layout
from support.elastic_scripts import CoreScript, HybridScript
from support.elastic_worlds import Outcome, core_spec, difference, reference, run_elastic, trained_once

pytestmark = pytest.mark.integration
STEPS = 9
JOINS_AND_LEAVES = HybridScript(join_at=1, contributions=4)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model_folder(tmp_path_factory.mktemp("models") / "qwen3", family="qwen3", tied=True)


@pytest.fixture(scope="module")
def joined(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two core replicas and one that joins and leaves."""
    return run_elastic(
        core_spec(model, layout(dp=2)), tmp_path_factory.mktemp("run"), [JOINS_AND_LEAVES], CoreScript(steps=STEPS)
    )


def test_a_replica_joins_trains_and_leaves(joined: Outcome) -> None:
    assert joined.members == [0, 0, 0, 1, 1, 1, 1, 0, 0]
    (answer,) = joined.hybrids[0]
    assert (answer["errors"], answer["contributions"], answer["version"]) == ([], 4, 7)
    assert joined.closed[0] == {0: "left"}
    assert trained_once(joined)


def test_weights_are_bit_equal_to_one_replica_with_the_same_membership(model: Path, joined: Outcome) -> None:
    expected = reference(core_spec(model, layout(dp=2)), joined)
    assert [step.digest for step in joined.steps] == expected["digests"]
    counts = [step.loss_tokens for step in joined.steps if step.counted]
    assert min(counts) > 250, "three replicas with counts like 150, 120 and 40"
    wrong = expected["mean_of_means_error"]
    assert min(wrong) > 0.1, "a mean of the replicas' means is another gradient at such counts"
    assert fmean(wrong) > 0.3


def test_the_replica_holds_bit_for_bit_what_the_core_holds(joined: Outcome) -> None:
    (answer,) = joined.hybrids[0]
    assert answer["digest"] == joined.steps[answer["version"] - 1].digest


def test_until_activation_the_run_is_that_without_a_replica(model: Path, joined: Outcome, tmp_path: Path) -> None:
    alone = run_elastic(core_spec(model, layout(dp=2)), tmp_path, script=CoreScript(steps=4))
    before = [step.digest for step in joined.steps[:3]]
    assert [step.digest for step in alone.steps[:3]] == before


@pytest.mark.parametrize("shape", [layout(tp=2), layout(pp=2)], ids=["TP2", "PP2"])
def test_sharded_replicas_are_bit_equal_too(model: Path, tmp_path: Path, shape: LayoutConfig) -> None:
    outcome = run_elastic(core_spec(model, shape), tmp_path, [JOINS_AND_LEAVES], CoreScript(steps=STEPS))
    assert outcome.members == [0, 0, 0, 1, 1, 1, 1, 0, 0]
    assert [step.digest for step in outcome.steps] == reference(core_spec(model, shape), outcome)["digests"]
    assert {answer["digest"] for answer in outcome.hybrids[0]} == {outcome.steps[6].digest}
    assert trained_once(outcome)


def test_with_a_distributed_optimizer_every_rank_serves_its_slice_of_the_snapshot(model: Path, tmp_path: Path) -> None:
    # The dual clip leaves entries whose gradient nearly cancels, and Adam makes steps of their rounding: 1.2e-6 instead of 1e-6.
    core = core_spec(model, layout(dp=2, distributed_optimizer=True), loss=LossConfig(entropy_coefficient=0.01, clip_dual=None))
    outcome = run_elastic(core, tmp_path, [JOINS_AND_LEAVES], CoreScript(steps=STEPS))
    assert outcome.members == [0, 0, 0, 1, 1, 1, 1, 0, 0]
    assert difference(outcome, reference(core, outcome)["weights"]) <= 1e-6
    assert outcome.hybrids[0][0]["errors"] == []
    assert outcome.hybrids[0][0]["digest"] == outcome.steps[6].digest
    assert trained_once(outcome)


def test_two_replicas_on_two_leaders(model: Path, tmp_path: Path) -> None:
    scripts = [HybridScript(slot=0, join_at=1, contributions=4), HybridScript(slot=1, join_at=2, contributions=4)]
    shape = core_spec(model, layout(dp=2), slots=2)
    outcome = run_elastic(shape, tmp_path, scripts, CoreScript(steps=STEPS))
    assert [step.counted for step in outcome.steps] == [(), (), (), (0,), (0, 1), (0, 1), (0, 1), (1,), ()]
    assert [step.digest for step in outcome.steps] == reference(shape, outcome)["digests"]
    assert trained_once(outcome)


@pytest.mark.slow
def test_bfloat16_weights_are_bit_equal_too(model: Path, tmp_path: Path) -> None:
    """Masters and moments are float32 on both sides; the snapshot holds them, not the rounded weights."""
    core = replace(core_spec(model, layout(dp=2)), dtype="bfloat16")
    outcome = run_elastic(core, tmp_path, [JOINS_AND_LEAVES], CoreScript(steps=STEPS))
    assert outcome.members == [0, 0, 0, 1, 1, 1, 1, 0, 0]
    assert [step.digest for step in outcome.steps] == reference(core, outcome)["digests"]
    assert outcome.hybrids[0][0]["digest"] == outcome.steps[6].digest


@pytest.mark.slow
def test_a_step_without_signal_is_skipped_on_both_sides(model: Path, tmp_path: Path) -> None:
    core = core_spec(model, layout(dp=2), loss=LossConfig(drop_without_signal=False))
    outcome = run_elastic(core, tmp_path, [HybridScript(join_at=1)], CoreScript(steps=7))
    assert [step.skipped for step in outcome.steps] == [False] * 4 + [True] + [False] * 2
    assert outcome.members == [0, 0, 0, 1, 1, 1, 1]
    assert [step.digest for step in outcome.steps] == reference(core, outcome)["digests"]
    assert outcome.hybrids[0][0]["digest"] == outcome.steps[-1].digest


@pytest.mark.slow
def test_a_step_that_is_taken_again_counts_no_contribution_to_the_first_attempt(model: Path, tmp_path: Path) -> None:
    core = core_spec(model, layout(dp=2))
    script = HybridScript(join_at=1, rejoin=True)
    outcome = run_elastic(core, tmp_path, [script], CoreScript(steps=STEPS, discard_at=4))
    assert outcome.members == [0, 0, 0, 1, 0, 0, 1, 1, 1]
    assert len(outcome.hybrids[0][0]["joins"]) == 2
    assert [step.digest for step in outcome.steps] == reference(core, outcome)["digests"]
    assert trained_once(outcome)
