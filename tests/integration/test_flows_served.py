"""The real loop through Prefect: with a private server, and as a deployment run that another process serves."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from mlflow import MlflowClient

from support.prefect_api import served_answer
from tests.integration.sessions import random_policy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
STEPS = 2
SMALL = [
    f"training.steps={STEPS}",
    "rollout.groups_per_step=4",
    "rollout.group_size=4",
    "workload.heldout_prompts=4",
    "tracking.sample_every_steps=1",
]
CONFIG = "configs/experiment/quickstart.yaml"
_START_S = 240.0
_STOP_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """A Prefect server of this test."""

    url: str
    env: dict[str, str]

    def post(self, path: str, **body: Any) -> Any:
        return served_answer("POST", f"{self.url}/{path}", body)


def _environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", **more}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_policy(tmp_path_factory.mktemp("model") / "policy")


def _overrides(folder: Path, policy: Path) -> list[str]:
    places = [f"run.root={folder}/runs", f"model.path={policy}", f"tracking.mlflow_uri=sqlite:///{folder}/mlflow.db"]
    return [*SMALL, *places]


def _sets(overrides: list[str]) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _libra(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", *arguments]


def _until(what: str, check: Any, deadline_s: float = _START_S) -> Any:
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        if found := check():
            return found
        time.sleep(1.0)
    raise AssertionError(f"{what} did not happen within {deadline_s:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prefect server and, beside it, `libra serve`."""
    folder = tmp_path_factory.mktemp("prefect")
    port = _free_port()
    url = f"http://127.0.0.1:{port}/api"
    env = _environment(folder, PREFECT_API_URL=url)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    log = (folder / "server.log").open("wb")
    process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        _until("the Prefect server's start", lambda: _answers(f"{url}/health"))
        yield Server(url=url, env=env)
    finally:
        _stop(process)


@pytest.fixture(scope="module")
def served(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = (tmp_path_factory.mktemp("serve") / "serve.log").open("wb")
    process = subprocess.Popen(_libra("serve", CONFIG), env=server.env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        _until("the deployment", lambda: server.post("deployments/filter"))
        yield server
    finally:
        _stop(process)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


def _mlflow_run(uri: str) -> Any:
    client = MlflowClient(tracking_uri=uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments() if experiment.name == "quickstart"]
    runs = client.search_runs(experiments)
    assert len(runs) == 1
    return client, runs[0]


def test_ephemeral_run_ends_with_one_json_line(tmp_path: Path, policy: Path) -> None:
    summary = _train(_environment(tmp_path / "prefect"), *_sets(_overrides(tmp_path, policy)))
    assert summary["steps"] == STEPS
    assert summary["tokens_per_s"] > 0
    assert json.loads((Path(summary["run_dir"]) / "trace.json").read_text())
    client, run = _mlflow_run(f"sqlite:///{tmp_path}/mlflow.db")
    assert run.info.status == "FINISHED"
    assert sorted(point.step for point in client.get_metric_history(run.info.run_id, "reward/mean")) == list(range(STEPS))


@pytest.mark.slow
def test_a_resumed_run_continues_in_the_same_folder_and_mlflow_run(tmp_path: Path, policy: Path) -> None:
    overrides = _overrides(tmp_path, policy)
    env = _environment(tmp_path / "prefect")
    summary = _train(env, *_sets(overrides))
    longer = [override for override in overrides if not override.startswith("training.steps")]
    resumed = _train(env, "--resume", summary["run_dir"], *_sets([*longer, f"training.steps={STEPS + 1}"]))
    assert resumed["run_dir"] == summary["run_dir"]
    assert resumed["steps"] == STEPS + 1
    assert resumed["policy_version"] == STEPS + 1
    client, run = _mlflow_run(f"sqlite:///{tmp_path}/mlflow.db")
    assert run.info.status == "FINISHED"
    assert sorted(point.step for point in client.get_metric_history(run.info.run_id, "reward/mean")) == list(range(STEPS + 1))


def test_ctrl_c_ends_the_run_as_killed_and_leaves_nothing_running(tmp_path: Path, policy: Path) -> None:
    overrides = [*_overrides(tmp_path, policy), "training.steps=10000"]
    process = subprocess.Popen(
        [sys.executable, "-c", HEARS_CTRL_C, *_libra("train", CONFIG, *_sets(overrides))],
        env=_environment(tmp_path / "prefect"),
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    try:
        metrics = _until("the first iteration", lambda: list(tmp_path.glob("runs/*/metrics.jsonl")))[0]
        _until("the first metrics", lambda: metrics.stat().st_size)
        below = psutil.Process(process.pid).children(recursive=True)
        assert any("ray::" in " ".join(child.cmdline()) for child in below)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, errors.decode()[-2000:]
    assert b"Traceback" not in errors
    _, alive = psutil.wait_procs(below, timeout=20)
    assert not [child for child in alive if "ray" in child.name() or "VLLM" in child.name()]
    assert _mlflow_run(f"sqlite:///{tmp_path}/mlflow.db")[1].info.status == "KILLED"


HEARS_CTRL_C = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
"""Tests that run in a shell's background were told to ignore Ctrl-C, and so are the commands they start."""

INTERRUPTED_FLOW = """
import os, signal
from prefect import flow
from flows.guard import heard_interrupts

@flow(on_completion=[lambda *_: os.kill(os.getpid(), signal.SIGINT)])
def iteration():
    pass

@flow
def run():
    with heard_interrupts() as raise_if_interrupted:
        for step in range(2):
            iteration()
            print("after", step, flush=True)
            raise_if_interrupted()

run()
"""


def test_ctrl_c_at_the_end_of_an_iteration_ends_the_run_although_prefect_swallows_it(server: Server) -> None:
    command = [sys.executable, "-c", HEARS_CTRL_C, sys.executable, "-c", INTERRUPTED_FLOW]
    done = subprocess.run(command, env=server.env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines() == ["after 0"]
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def _train(env: dict[str, str], *arguments: str) -> dict[str, Any]:
    command = _libra("train", CONFIG, "--json", *arguments)
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_deployment_run_completes_with_subflows_artifacts_and_metrics(served: Server, tmp_path: Path, policy: Path) -> None:
    parameters = json.dumps({"config": CONFIG, "overrides": _overrides(tmp_path, policy)})
    command = [sys.executable, "-m", "prefect", "deployment", "run", "libra-train/libra-train", "-p", f"parameters={parameters}"]
    subprocess.run(command, env=served.env, cwd=ROOT, check=True, capture_output=True)

    parent = _until("the end of the run", lambda: _finished(served, "quickstart"), deadline_s=600)
    assert parent["state"]["type"] == "COMPLETED"
    iterations = [run for run in served.post("flow_runs/filter", limit=100) if "/it-" in run["name"]]
    assert len(iterations) == STEPS
    assert all(run["state"]["type"] == "COMPLETED" and "libra" in run["tags"] for run in iterations)
    keys = {artifact["key"] for artifact in served.post("artifacts/filter", limit=100)}
    assert {"training-progress", "mlflow-run", "iteration-metrics"} <= keys
    _, run = _mlflow_run(f"sqlite:///{tmp_path}/mlflow.db")
    assert run.info.status == "FINISHED"
    assert run.data.tags["prefect.flow_run_id"] == parent["id"]
    assert run.data.metrics["summary/steps"] == STEPS


def test_deployment_run_of_a_study_fills_mlflow(served: Server, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    study = {"systems": ["areal_static_optimal", "libra"], "workloads": ["search_r1"], "seeds": 2, "steps": 8, "processes": 1}
    parameters = json.dumps({**study, "root": str(tmp_path / "runs"), "mlflow": uri})
    _until("the deployment", lambda: any(row["name"] == "libra-compare" for row in served.post("deployments/filter")))
    command = [
        sys.executable,
        "-m",
        "prefect",
        "deployment",
        "run",
        "libra-compare/libra-compare",
        "-p",
        f"parameters={parameters}",
    ]
    subprocess.run(command, env=served.env, cwd=ROOT, check=True, capture_output=True)
    run = _until("the end of the study", lambda: _finished(served, "study-48gpu-eta1"))
    assert run["state"]["type"] == "COMPLETED"
    keys = {artifact["key"] for artifact in served.post("artifacts/filter", limit=100)}
    assert {"comparison", "comparison-mlflow"} <= keys
    client = MlflowClient(tracking_uri=uri)
    (experiment,) = [found for found in client.search_experiments() if found.name == "study-48gpu"]
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if run.data.tags.get("kind") == "study"]
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert {(run.data.tags["baseline"], run.data.tags["seed"]) for run in children} == {
        (system, seed) for system in ("areal_static_optimal", "libra") for seed in ("1", "2")
    }
    assert all(run.data.metrics["tokens_per_s"] > 0 and run.info.status == "FINISHED" for run in children)
    assert len(client.get_metric_history(children[0].info.run_id, "iteration/t_iter_s")) == 4
    assert parent.data.metrics["over_baseline/areal_static_optimal"] == 1.0
    files = {artifact.path for folder in (None, "figures") for artifact in client.list_artifacts(parent.info.run_id, folder)}
    assert {"summary.json", "results.json", "figures/throughput.png", "figures/timeline.png", "figures/gantt.png"} <= files


def _finished(server: Server, name: str = "") -> dict[str, Any] | None:
    every = server.post("flow_runs/filter", limit=100)
    runs = [run for run in every if run["parent_task_run_id"] is None and run["name"].startswith(name)]
    return next((run for run in runs if run["state"]["type"] in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}), None)
