"""The training flow on a private Prefect server and a real MLflow store, with a session that answers at once."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.testing.utilities import prefect_test_harness

from flows.parameters import TrainParameters
from flows.replanning import ask_for_replanning
from flows.stopping import ask_to_stop
from flows.training import train
from libra_core.config import LibraConfig
from libra_core.config.loading import process_environment
from libra_core.errors import LibraError, ResourceError, TrainerLostError
from libra_core.tracking.decisions import read_decisions
from libra_core.tracking.run_folder import read_journal, update_journal
from libra_core.tracking.run_owner import owned
from libra_core.tracking.summary import RunSummary
from libra_core.types.session import SessionRef
from support.plan_manager import FakePlanManager
from support.session import FakeBackend
from tasks.connection import using

pytestmark = [pytest.mark.core, pytest.mark.integration]

STEPS = 4


@pytest.fixture(scope="module", autouse=True)
def _prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    process_environment(tmp_path_factory.mktemp("prefect"))
    with prefect_test_harness(server_startup_timeout=180):
        yield


@dataclass(kw_only=True)
class Training:
    """Runs the flow under one root."""

    root: Path

    def __call__(self, backend: FakeBackend, *overrides: str, resume: Path | None = None) -> RunSummary:
        config = self.root / "config.yaml"
        config.write_text(f"run: {{name: demo, root: {self.root}/runs}}\ntraining: {{steps: {STEPS}}}\n")
        parameters = TrainParameters(config=str(config), overrides=list(overrides), resume=str(resume) if resume else None)
        if resume is not None:
            _pretend_checkpoint(resume)
        with using(backend):
            return train(parameters)

    def run_folder(self) -> Path:
        return next(path for path in (self.root / "runs").glob("demo-*") if path.is_dir())

    def mlflow_run(self, run_dir: Path) -> Any:
        journal = read_journal(run_dir)
        assert journal.mlflow_run_id is not None
        return MlflowClient(tracking_uri=journal.mlflow_uri).get_run(journal.mlflow_run_id)


def _pretend_checkpoint(run_dir: Path) -> None:
    """The session that answers at once saves none, and what is looked at beforehand asks for one."""
    marker = run_dir / "checkpoints" / "step-000001" / "COMPLETE.json"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(root=tmp_path)


def _flow_runs(matches: Callable[[FlowRun], bool]) -> list[FlowRun]:
    with get_client(sync_client=True) as client:
        return [run for run in client.read_flow_runs(limit=200) if matches(run)]


def test_finished_run_is_recorded_everywhere(training: Training) -> None:
    backend = FakeBackend()
    summary = training(backend)
    run_dir = Path(summary.run_dir)

    assert (backend.opened, backend.closed) == (1, 1)
    assert backend.taken == list(range(STEPS))
    assert backend.published == [1, 2, 3, 4]
    assert backend.checkpoints == [STEPS]

    mlflow_run = training.mlflow_run(run_dir)
    assert mlflow_run.info.status == "FINISHED"
    assert mlflow_run.data.params["training.steps"] == str(STEPS)
    assert mlflow_run.data.tags["outcome"] == "finished"
    assert mlflow_run.data.metrics["summary/steps"] == STEPS
    history = MlflowClient(tracking_uri=read_journal(run_dir).mlflow_uri).get_metric_history(
        mlflow_run.info.run_id, "reward/mean"
    )
    assert sorted(point.step for point in history) == list(range(STEPS))

    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == STEPS
    assert any(event["ph"] == "X" for event in json.loads((run_dir / "trace.json").read_text()))
    assert read_journal(run_dir).session is None


def test_iterations_are_named_and_tagged_subflows_whose_tasks_have_no_tags(training: Training) -> None:
    name = Path(training(FakeBackend()).run_dir).name
    iterations = _flow_runs(lambda run: run.name.startswith(f"{name}/"))
    assert sorted(run.name for run in iterations) == [f"{name}/it-{step:05d}" for step in range(STEPS)]
    assert all({"libra", "search_r1", name} <= set(run.tags) for run in iterations)
    with get_client(sync_client=True) as client:
        task_runs = [run for run in client.read_task_runs(limit=200) if run.name.startswith(("rollout-", "update-", "log-"))]
    assert task_runs
    assert all(not run.tags for run in task_runs)


def test_inline_iterations_make_no_subflows(training: Training) -> None:
    name = Path(training(FakeBackend(), "orchestration.iteration_as=inline").run_dir).name
    assert _flow_runs(lambda run: run.name.startswith(f"{name}/")) == []


def test_lost_trainer_fails_the_run_and_it_resumes_in_the_same_mlflow_run(training: Training) -> None:
    broken = FakeBackend(fail_at=2, failure=TrainerLostError("rank 0 died"))
    with pytest.raises(TrainerLostError):
        training(broken)
    run_dir = training.run_folder()
    first = training.mlflow_run(run_dir)
    assert first.info.status == "FAILED"
    assert broken.closed == 1

    resumed = FakeBackend(start_version=2)
    summary = training(resumed, resume=run_dir)
    assert resumed.taken == [2, 3]
    assert summary.steps == STEPS
    assert summary.mlflow_run_id == first.info.run_id
    assert training.mlflow_run(run_dir).info.status == "FINISHED"


def test_interrupt_ends_the_run_as_killed(training: Training) -> None:
    backend = FakeBackend(fail_at=1, failure=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        training(backend)
    assert training.mlflow_run(training.run_folder()).info.status == "KILLED"
    assert backend.closed == 1


def test_refused_start_leaves_no_run_folder(training: Training) -> None:
    with pytest.raises(ResourceError):
        training(FakeBackend(open_failure=ResourceError("no memory")))
    assert list((training.root / "runs").glob("demo-*")) == []


def test_run_without_mlflow_keeps_its_folder(training: Training) -> None:
    summary = training(FakeBackend(), "tracking.mlflow_uri=off")
    assert summary.mlflow_run_id is None
    assert len((Path(summary.run_dir) / "metrics.jsonl").read_text().splitlines()) == STEPS


def test_looks_at_the_plan_are_subflows_and_in_ledger_mlflow_and_pages(training: Training) -> None:
    backend = FakeBackend(planner=FakePlanManager(forecasts={0: 5.0, 1: 19.9, 2: 10.0}, unmeasured=frozenset({0})))
    summary = training(backend)
    run_dir = Path(summary.run_dir)
    rows = read_decisions(run_dir)
    assert [(row["step"], row["verdict"], row["outcome"]) for row in rows] == [(1, "keep", "kept"), (2, "switch", "done")]
    assert (rows[1]["gain_s_per_step"], rows[1]["realised_gain_s_per_step"]) == (10.0, 8.0)
    assert rows[1]["profile"]["train_s_per_token"] == 1e-3
    assert summary.trajectories == {"taken": 32, "trained": 32, "without_signal": 0, "failed": 0, "lost": 0, "doubled": 0}
    (switch,) = summary.replanning["switches"]
    assert (switch["predicted_gain_s_per_step"], switch["realised_gain_s_per_step"]) == (10.0, 8.0)

    mlflow_run = training.mlflow_run(run_dir)
    assert mlflow_run.data.metrics["plan/gain_s_per_step"] == 10.0
    assert mlflow_run.data.metrics["plan/realised_gain_s_per_step"] == 8.0
    assert mlflow_run.data.tags["plan.switches"] == "1"
    client = MlflowClient(tracking_uri=read_journal(run_dir).mlflow_uri)
    assert {"decisions.json", "decisions.jsonl"} <= {item.path for item in client.list_artifacts(mlflow_run.info.run_id)}

    comparisons = _flow_runs(lambda run: run.name.startswith(f"{run_dir.name}/plan-"))
    assert sorted(run.name for run in comparisons) == [f"{run_dir.name}/plan-{step:05d}" for step in (0, 1, 2)]
    with get_client(sync_client=True) as client:
        pages = [page for page in client.read_artifacts(limit=200) if page.key == "plan-decision"]
    assert any("**step 2: switch to dp 2" in str(page.data) for page in pages)


def test_a_look_asked_for_from_outside_is_made_after_the_next_iteration(training: Training) -> None:
    manager = FakePlanManager(forecasts={})
    backend = FakeBackend(planner=manager)
    taking = backend.taken

    class AsksAtTwo(list[int]):
        """The request arrives while the third batch is taken."""

        def append(self, step: int) -> None:
            super().append(step)
            if step == 2:
                ask_for_replanning(training.run_folder())

    backend.taken = AsksAtTwo(taking)
    run_dir = Path(training(backend).run_dir)
    assert manager.asked == [2]
    assert [row["step"] for row in read_decisions(run_dir)] == [2]


def test_a_run_asked_to_stop_saves_a_checkpoint_and_is_resumed_to_its_end(training: Training) -> None:
    backend = FakeBackend()
    taking = backend.taken

    class StopsAtOne(list[int]):
        """The request arrives while the second batch is taken."""

        def append(self, step: int) -> None:
            super().append(step)
            if step == 1:
                ask_to_stop(training.run_folder())

    backend.taken = StopsAtOne(taking)
    summary = training(backend, "training.checkpoint.every_steps=0", "workload.heldout_prompts=4")
    run_dir = Path(summary.run_dir)
    assert (summary.stopped_early, summary.steps, summary.heldout) == (True, 2, {})
    assert backend.checkpoints == [2]
    assert training.mlflow_run(run_dir).info.status == "KILLED"

    resumed = training(FakeBackend(start_version=2), resume=run_dir)
    assert (resumed.stopped_early, resumed.steps) == (False, STEPS)
    assert training.mlflow_run(run_dir).info.status == "FINISHED"


def test_a_run_whose_mlflow_run_is_gone_goes_on_in_a_new_one(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TrainerLostError):
        training(FakeBackend(fail_at=2, failure=TrainerLostError("rank 0 died")))
    moved = training.root / "moved"
    moved.mkdir()
    run_dir = Path(shutil.move(training.run_folder(), moved))
    lost = read_journal(run_dir).mlflow_run_id
    summary = training(FakeBackend(start_version=2), f"run.root={moved}", resume=run_dir)
    assert summary.mlflow_run_id not in {None, lost}
    assert training.mlflow_run(run_dir).info.status == "FINISHED"
    assert any(f"does not know run {lost}" in record.getMessage() for record in caplog.records)


def test_what_a_killed_session_left_is_removed_before_the_next_one_is_known(training: Training) -> None:
    with pytest.raises(TrainerLostError):
        training(FakeBackend(fail_at=2, failure=TrainerLostError("rank 0 died")))
    run_dir = training.run_folder()
    killed = SessionRef(run_id="killed", run_dir=str(run_dir), ray_address="local", namespace="libra-killed")
    update_journal(run_dir, session=killed)
    closed: list[str] = []

    class RemembersWhatItCloses(FakeBackend):
        def open_session(self, config: LibraConfig, run_dir: Path, report: Callable[[str, float], None]) -> SessionRef:
            closed.append("opened")
            return super().open_session(config, run_dir, report)

        def close_session(self, session: SessionRef) -> None:
            closed.append(session.run_id)

    training(RemembersWhatItCloses(start_version=2), resume=run_dir)
    assert closed == ["killed", "opened", f"{run_dir.name}-fake"]


def test_a_second_resume_of_a_run_is_refused_before_anything_starts(training: Training) -> None:
    training(FakeBackend())
    run_dir, backend = training.run_folder(), FakeBackend()
    with owned(run_dir), pytest.raises(LibraError, match="is being trained by process"):
        training(backend, resume=run_dir)
    assert backend.opened == 0


def test_a_private_server_has_no_page_to_link_to(training: Training) -> None:
    training(FakeBackend())
    tags = training.mlflow_run(training.run_folder()).data.tags
    assert urlsplit(tags.get("prefect.flow_run_url", "http://")).scheme == "http"
    assert "None" not in tags["mlflow.note.content"]
