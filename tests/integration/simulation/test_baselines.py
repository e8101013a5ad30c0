"""`libra compare` over trainings, with processes, Prefect and MLflow as for real ones; the sessions are simulated."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from libra_core.config.databases import store_of

pytestmark = pytest.mark.integration

_COMMON = ["backend.kind=simulated", "rollout.groups_per_step=8", "training.checkpoint.every_steps=0"]


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """Three baselines: one that runs, one that fails when it has started, one that its backend cannot run."""
    base = Path("configs/experiment/simulated_48gpu.yaml").resolve()
    for name, text in {
        "good": "",
        "late": "rollout: {queue_order: longest_first}\n",
        "never": "elastic: {hybrid_replicas: 1}\n",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(f"extends: {base}\n{text}")
    file = tmp_path / "small.yaml"
    names = "[late.yaml, good.yaml, never.yaml]"
    file.write_text(f"name: small\nbaselines: {names}\nreference: good\nseeds: 1\nsteps: 4\ncommon: {json.dumps(_COMMON)}\n")
    return file


def _command(file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", "compare", str(file), "--json", *options]


def _environment(folder: Path) -> dict[str, str]:
    """Everything lies under the working directory, as for a person."""
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in [".", *sys.path])
    unset = ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI")
    return {name: value for name, value in os.environ.items() if name not in unset} | {"PYTHONPATH": path, "HOME": str(folder)}


def test_a_failed_training_and_one_that_cannot_run_are_rows_and_the_rest_is_in_one_experiment(
    comparison: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        _command(comparison), cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    runs = {run["baseline"]: run for run in results["runs"]}
    assert {name: run["status"] for name, run in runs.items()} == {"late": "failed", "good": "finished", "never": "refused"}
    assert (runs["late"]["exit_code"], runs["good"]["exit_code"], runs["never"]["exit_code"]) == (2, 0, None)
    assert "queue_order = longest_first is not simulated" in runs["late"]["reason"]
    assert "does not go with backend.kind = simulated" in runs["never"]["reason"]
    assert json.loads((Path(results["folder"]) / "results.json").read_text())["rows"] == results["rows"]

    client = MlflowClient(store_of(tmp_path / "runs"))
    experiment = client.get_experiment_by_name("small")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    parent = next(run for run in found if run.data.tags.get("kind") == "comparison")
    child = next(run for run in found if run.data.tags.get("baseline") == "good")
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.metrics["tokens_per_s"] == pytest.approx(runs["good"]["figures"]["tokens_per_s"])
    assert {"t_iter_s", "t_train_s", "trainer_busy", "steps_per_hour", "staleness_mean"} <= set(child.data.metrics)


def test_an_interrupt_ends_the_training_that_runs_then_the_comparison(comparison: Path, tmp_path: Path) -> None:
    long = ("--systems", "good", "--steps", "5000")
    process = subprocess.Popen(
        _command(comparison, *long), cwd=tmp_path, env=_environment(tmp_path), stderr=subprocess.PIPE, text=True
    )
    try:
        journal = _first(tmp_path, "runs/small-*/*/metrics.jsonl", process)
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=90)
    finally:
        process.kill()
        process.wait(30)
    assert process.returncode == 130
    assert "interrupted; everything that was started is closed" in said
    assert psutil.wait_procs(below, timeout=30)[1] == []
    assert json.loads((journal.parent / "journal.json").read_text())["session"] is None


def _first(folder: Path, pattern: str, process: subprocess.Popen[str]) -> Path:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        for found in folder.glob(pattern):
            return found
        time.sleep(0.2)
    raise AssertionError(f"nothing at {pattern}; the comparison ended with {process.poll()}")
