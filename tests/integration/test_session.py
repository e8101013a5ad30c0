"""A whole session on real engines and a real trainer: what is lost is replaced, and nothing is left behind."""

import threading
import time
from pathlib import Path

import psutil
import pytest

from libra_core import assembly
from libra_core.engines.checkpoint_files import complete_checkpoints
from libra_core.errors import CheckpointError, DeadlineError, TrainerLostError
from tests.integration.sessions import iterate, own_processes, random_policy, reported, run_until, session, small_config

pytestmark = pytest.mark.integration

RUN_NAMES = ("run", "first", "second")
"""Run folders of these tests; shared memory is named after them, and other runs of the host are none of our business."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_policy(tmp_path_factory.mktemp("model") / "policy")


def test_a_killed_engine_is_replaced_and_a_killed_trainer_ends_the_iteration_with_its_name(model: Path, tmp_path: Path) -> None:
    long_turns = {"engines": [{"tp": 1, "count": 2}], "max_new_tokens": 320, "max_num_seqs": 4, "age_slack": 0}
    config = small_config(model, tmp_path, rollout=long_turns)
    with session(config, tmp_path / "run") as connection:
        iterate(connection, 0)
        victim = min(own_processes("ray::EngineActor"), key=lambda process: process.create_time())
        victim.kill()
        seen = [iterate(connection, step) for step in range(1, 4)]
        assert [rollout.groups for rollout, _, _ in seen] == [4, 4, 4]
        assert [rollout.trajectories for rollout, _, _ in seen] == [16, 16, 16]
        assert all(rollout.staleness_max <= 1 for rollout, _, _ in seen)
        assert all(rollout.groups_dropped == 0 for rollout, _, _ in seen)

        replaced = wait_for_engines(connection, 2)
        _, update, publication = iterate(connection, 4)
        assert len({part.engine_id for part in publication.engines}) == 2
        assert any("r1" in part.engine_id for part in publication.engines), replaced
        assert {stats.policy_version for stats in connection.rollout.stats()} == {update.policy_version}

        rollout = connection.rollout.take_batch(5)
        connection.reward.score(rollout.batch_id)
        trainer = own_processes("ray::TrainerActor")[0]
        trainer.kill()
        with pytest.raises(TrainerLostError, match="trainer rank 0 died during"):
            connection.trainer.update(rollout.batch_id, rollout.policy_version)
    assert_nothing_left()


def test_broadcast_reaches_every_engine(model: Path, tmp_path: Path) -> None:
    config = small_config(
        model,
        tmp_path,
        rollout={"engines": [{"tp": 1, "count": 2}]},
        publication={"transport": "broadcast", "in_flight": "abort"},
    )
    with session(config, tmp_path / "run") as connection:
        for step in range(2):
            _, _, publication = iterate(connection, step)
            assert len(publication.engines) == 2
            assert publication.canary_max_error < 1e-4
    assert_nothing_left()


@pytest.mark.slow
def test_an_engine_that_dies_before_a_broadcast_costs_nothing_but_itself(model: Path, tmp_path: Path) -> None:
    config = small_config(
        model,
        tmp_path,
        rollout={"engines": [{"tp": 1, "count": 2}]},
        publication={"transport": "broadcast"},
        training={"steps": 100},
    )
    with session(config, tmp_path / "run") as connection:
        iterate(connection, 0)
        rollout = connection.rollout.take_batch(1)
        connection.reward.score(rollout.batch_id)
        update = connection.trainer.update(rollout.batch_id, rollout.policy_version)
        own_processes("VLLM::EngineCore")[0].kill()
        publication = connection.rollout.publish(update.policy_version)
        assert (publication.policy_version, len(publication.engines)) == (2, 1)
        assert publication.canary_max_error < 1e-4
        step, _ = run_until(connection, 2, lambda: len(connection.rollout.stats()) == 2)
        _, _, publication = iterate(connection, step)
        assert len(publication.engines) == 2
        assert publication.canary_max_error < 1e-4
    assert_nothing_left()


@pytest.mark.slow
def test_a_resumed_session_continues_with_the_same_weights_and_forecast_history(model: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    with session(small_config(model, tmp_path), first) as connection:
        assert reported(connection, 0).forecast is None, "nothing is known before the first iteration"
        iterate(connection, 1)
        connection.trainer.save(2)
        digest = connection.trainer.digest()

    resumed = small_config(model, tmp_path, run={"root": str(tmp_path), "resume": str(first)})
    with session(resumed, tmp_path / "second") as connection:
        assert connection.trainer.version() == 2
        assert connection.trainer.digest() == digest
        report = reported(connection, 2)
        assert report.rollout.groups == 4
        assert report.update.policy_version == 3
        assert report.forecast is not None
        assert report.forecast.forecast.t_rollout_s > 0
    assert_nothing_left()


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_and_the_refusal_leaves_nothing_running(model: Path, tmp_path: Path) -> None:
    config = small_config(model, tmp_path)
    first = tmp_path / "first"
    with session(config, first) as connection:
        iterate(connection, 0)
        connection.trainer.save(1)
    saved = complete_checkpoints(first / "checkpoints")[-1]
    victim = max((file for file in saved.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-64])
    resumed = small_config(model, tmp_path, run={"root": str(tmp_path), "resume": str(first)})
    with pytest.raises(CheckpointError):
        assembly.open_session(resumed, tmp_path / "second", lambda _what, _share: None)
    assert_nothing_left()


def test_a_group_that_never_ends_stops_the_run_with_a_report_of_who_waits_for_whom(model: Path, tmp_path: Path) -> None:
    config = small_config(
        model,
        tmp_path,
        workload={"kind": "synthetic", "tool_wait_s": 3600.0, "tool_wait_sigma": 0.0},
        rollout={"staleness": 0, "age_slack": 0, "tool_deadline_s": 7200.0, "batch_deadline_s": 10.0},
    )
    with session(config, tmp_path / "run") as connection, pytest.raises(DeadlineError) as error:
        connection.rollout.take_batch(0)
    sentence = str(error.value)
    assert "step 0 waited 10 s (rollout.batch_deadline_s) for groups" in sentence
    assert "at their age limit; running groups:" in sentence
    assert "trajectories per engine: {'engine-0':" in sentence
    assert_nothing_left()


def wait_for_engines(connection, count: int, within_s: float = 180.0) -> int:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        alive = len(connection.rollout.stats())
        if alive == count:
            return alive
        threading.Event().wait(1.0)
    raise AssertionError(f"only {alive} of {count} engines after {within_s:.0f} s")


def assert_nothing_left() -> None:
    """No Ray or vLLM process below this one, no published weights in shared memory, no temporary Ray folder."""
    leftovers = [p for p in psutil.Process().children(recursive=True) if is_ours(p)]
    _, alive = psutil.wait_procs(leftovers, timeout=15)
    assert not [describe(p) for p in alive]
    assert not [path for name in RUN_NAMES for path in Path("/dev/shm").glob(f"libra-{name}-*")]


def is_ours(process: psutil.Process) -> bool:
    """Other tests' worlds of Megatron leave their fork server to the end of pytest."""
    command = describe(process)
    return "multiprocessing.forkserver" not in command and any(word in command for word in ("ray", "VLLM", "vllm"))


def describe(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
