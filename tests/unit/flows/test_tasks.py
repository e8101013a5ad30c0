"""Tasks through `.fn`: no Prefect server, no actors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from libra_core.config import LibraConfig
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.session import SessionRef
from support.reports import publication_report, reward_report, rollout_report, update_report
from support.session import FakeBackend
from tasks.connection import using
from tasks.options import core_task
from tasks.reports import assemble_report
from tasks.reward import score_trajectories
from tasks.rollout import generate_trajectories
from tasks.training import publish_weights, save_checkpoint, update_policy

TASKS = (generate_trajectories, score_trajectories, update_policy, publish_weights, save_checkpoint)


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    fake = FakeBackend()
    with using(fake):
        yield fake


@pytest.fixture
def session(backend: FakeBackend, tmp_path: Path) -> SessionRef:
    return backend.open_session(LibraConfig(), tmp_path, lambda name, fraction: None)


def test_each_task_makes_one_call(backend: FakeBackend, session: SessionRef) -> None:
    rollout = generate_trajectories.fn(session, 3)
    update = update_policy.fn(session, rollout.batch_id, rollout.policy_version)
    publish_weights.fn(session, update.policy_version)
    save_checkpoint.fn(session, 4)
    assert (backend.taken, backend.updates, backend.published, backend.checkpoints) == ([3], ["step-000003"], [4], [4])


def test_a_checkpoint_waits_for_the_publication_of_its_weights(backend: FakeBackend, session: SessionRef) -> None:
    save_checkpoint.fn(session, 4)
    assert (backend.resolved, backend.checkpoints) == ([0], [4])


def test_reward_of_the_batch_is_returned(session: SessionRef) -> None:
    assert score_trajectories.fn(session, BatchId("step-000005")).mean == pytest.approx(0.5)


def test_report_takes_times_from_the_session(session: SessionRef) -> None:
    report = assemble_report(session, rollout_report(2), reward_report(2), update_report(2), publication_report(3))
    assert report.step == 2
    assert report.update.policy_version == PolicyVersion(3)


@pytest.mark.parametrize("item", TASKS, ids=lambda item: item.name)
def test_tasks_hash_nothing_store_nothing_and_have_no_tags(item: object) -> None:
    assert item.persist_result is False
    assert item.tags == set()
    assert item.cache_policy == core_task.keywords["cache_policy"]
