"""The simulated session behind the same ports, flows and tasks."""

from dataclasses import astuple
from pathlib import Path

import pytest

from libra_core import assembly
from libra_core.config import load_config
from libra_core.errors import ConfigError
from libra_core.planning.history_file import read_history
from libra_core.simulation.backend import SimulatedSession
from libra_core.tracking.lengths import FILE_NAME, LengthLog

CONFIG = "configs/experiment/simulated_48gpu.yaml"
SMALL = ("training.steps=4", "rollout.groups_per_step=8")


def iterations(session: SimulatedSession, steps: int):
    for step in range(steps):
        rollout = session.rollout.take_batch(step)
        reward = session.reward.score(rollout.batch_id)
        update = session.trainer.update(rollout.batch_id, rollout.policy_version)
        publication = session.rollout.publish(update.policy_version)
        yield session.rollout.iteration_report(step, rollout, reward, update, publication)


def test_iterations_pass_in_virtual_time_and_add_up(tmp_path: Path) -> None:
    session = SimulatedSession(load_config(CONFIG, SMALL), tmp_path)
    reports = list(iterations(session, 4))
    assert [report.update.policy_version for report in reports] == [1, 2, 3, 4]
    for report in reports:
        breakdown = astuple(report.breakdown)
        assert sum(breakdown[:5]) == pytest.approx(report.t_iter_s, rel=1e-6)
        assert sum(breakdown[5:]) == pytest.approx(report.t_iter_s, rel=1e-6)
        assert report.rollout.trajectories == 8 * 16
        assert sum(report.rollout.staleness_histogram.values()) == 8 * 16
    assert session.trainer.version() == 4


def test_contexts_of_turns_are_cached_and_what_is_computed_again_agrees_with_the_account(tmp_path: Path) -> None:
    reports = list(iterations(SimulatedSession(load_config(CONFIG, SMALL), tmp_path), 4))
    for report in reports:
        rollout = report.rollout
        new = rollout.prompt_tokens + rollout.generated_tokens + rollout.tool_tokens
        assert rollout.context_tokens > new
        assert 0 < rollout.cached_tokens <= rollout.context_tokens - rollout.prompt_tokens - rollout.tool_tokens
        assert (rollout.reprefilled_tokens > 0) == (report.breakdown.fleet_reprefill_s > 0)


def test_a_batch_that_is_taken_again_does_not_train_again(tmp_path: Path) -> None:
    session = SimulatedSession(load_config(CONFIG, SMALL), tmp_path)
    assert session.rollout.take_batch(0) == session.rollout.take_batch(0)
    assert session.trainer.version() == 1


def test_the_run_leaves_a_length_log_that_plans_and_replays_read(tmp_path: Path) -> None:
    session = SimulatedSession(load_config(CONFIG, SMALL), tmp_path)
    log = LengthLog(tmp_path)
    for report in iterations(session, 2):
        log.append(session.lengths(report.rollout.batch_id))
    records = read_history(tmp_path / FILE_NAME)
    assert len(records) == 2 * 8 * 16
    again = SimulatedSession(load_config(CONFIG, [*SMALL, f"simulation.history={tmp_path / FILE_NAME}"]), tmp_path / "again")
    (tmp_path / "again").mkdir()
    assert again.rollout.take_batch(0).generated_tokens > 0


def test_assembly_opens_finds_and_closes_it_without_starting_anything(tmp_path: Path) -> None:
    session = assembly.open_session(load_config(CONFIG, SMALL), tmp_path, lambda name, share: None)
    assert assembly.connect(session).controller.plan().num_gpus == 48
    assembly.close_session(session)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["run.resume=runs/x"], "a simulated run has no checkpoint"),
        (["rollout.engines=[{tp: 3, count: 1}]"], "no engine of tp 3"),
        (["rollout.queue_order=longest_first"], "rollout.queue_order = longest_first is not simulated"),
        (["rollout.engines=[{tp: 2, count: 4}, {tp: 4, count: 2}]", "routing=cmlfq"], "routing.policy = cmlfq is not simulated"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        SimulatedSession(load_config(CONFIG, [*SMALL, *overrides]), tmp_path)
