"""Several trainings under one root, started at the same moment, and a run folder that has one owner; simulated sessions."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from libra_core.config.databases import store_of
from libra_core.tracking.run_folder import read_journal, run_folders
from libra_core.tracking.run_owner import last_owner, owner_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
CONFIG = "configs/experiment/simulated_48gpu.yaml"
ODD_NAME = "50%25 a?b #1"
_START_S, _ALL_S = 240.0, 600.0

Libra = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def libra() -> Iterator[Libra]:
    """Starts the command in the repository, with a fresh Prefect under the run root; what is left of it is ended."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    begun: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flows.cli", *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        begun.append(subprocess.Popen(command, cwd=ROOT, env={**kept, "OMP_NUM_THREADS": "1"}, text=True, **streams))
        return begun[-1]

    yield start
    for process in begun:
        _end(process.pid)


def _end(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _train(root: Path, *, seed: int, steps: int) -> list[str]:
    sets = [f"run.root={json.dumps(str(root))}", f"seed={seed}", f"training.steps={steps}"]
    return ["train", CONFIG, "--json", *(part for each in sets for part in ("--set", each))]


def _flow_states(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        return [state for (state,) in database.execute("SELECT state_type FROM flow_run")]


def _until(what: str, check: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        if found := check():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} did not happen within {_START_S:.0f} s")


@pytest.mark.parametrize("count", [2, 8])
def test_trainings_started_at_once_in_a_fresh_root_all_work(libra: Libra, tmp_path: Path, count: int) -> None:
    """The root's name has every character that means something else in an address."""
    root = tmp_path / ODD_NAME
    trainings = [libra(*_train(root, seed=seed, steps=2)) for seed in range(count)]
    ends = [training.communicate(timeout=_ALL_S) for training in trainings]
    assert [training.returncode for training in trainings] == [0] * count, "\n".join(error[-2000:] for _, error in ends)
    assert [json.loads(out.splitlines()[-1])["steps"] for out, _ in ends] == [2] * count
    assert not [error for _, error in ends if "Traceback" in error]

    folders = run_folders(root)
    assert len(folders) == count
    assert all(owner_of(folder) is None and read_journal(folder).session is None for folder in folders)
    client = MlflowClient(tracking_uri=store_of(root))
    experiment = client.get_experiment_by_name("simulated")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * count
    assert {run.data.metrics["summary/steps"] for run in runs} == {2.0}
    assert not [run.data.tags["prefect.flow_run_url"] for run in runs if "prefect.flow_run_url" in run.data.tags]
    assert _flow_states(root / "prefect") == ["COMPLETED"] * count
    assert [path.name for path in tmp_path.iterdir()] == [ODD_NAME], "nothing lies beside the root"


def test_a_run_has_one_owner_and_a_dead_one_is_said_to_be_dead(libra: Libra, tmp_path: Path) -> None:
    training = libra(*_train(tmp_path, seed=0, steps=100_000))
    folder = _until("the first iteration", lambda: [each for each in run_folders(tmp_path) if read_journal(each).next_step])[0]
    owner = last_owner(folder)
    assert owner is not None
    assert owner == owner_of(folder)

    second = libra("train", CONFIG, "--resume", str(folder), "--set", f"run.root={tmp_path}")
    _, said = second.communicate(timeout=_START_S)
    assert second.returncode == 2
    assert said.splitlines()[-1].startswith(f"libra: {folder} is being trained by process {owner.pid} on {socket.gethostname()}")

    os.kill(owner.pid, signal.SIGKILL)
    training.wait(60)
    _until("the end of the owner", lambda: owner_of(folder) is None)
    stop = libra("stop", str(folder))
    _, said = stop.communicate(timeout=60)
    assert stop.returncode == 2
    assert "Traceback" not in said
    assert f"--resume {folder}" in said or "it has ended" in said
