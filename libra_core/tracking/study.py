"""A study in MLflow: one experiment, a parent run with table and figures, one child run per system, workload and seed."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from libra_core.config import LibraConfig
from libra_core.config.runtime import RunConfig, TrackingConfig
from libra_core.tracking.mlflow_tracker import client_of, flat_params, mlflow_uri, open_experiment
from libra_core.tracking.one_writer import one_writer
from libra_core.tracking.study_figures import draw_figures

RESULTS, RUNS = "results.json", "runs.json"
_MOST_POINTS = 40
_METRICS_PER_CALL = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlace:
    """Where a study is seen."""

    folder: str
    mlflow_url: str | None
    """Page that compares its runs."""
    parent_run_id: str | None
    num_runs: int


def log_study(folder: Path, root: str, mlflow_setting: str | None) -> StudyPlace:
    """Draw the figures into the folder and send everything to MLflow; `off` as setting only draws.

    Raises:
        ResourceError: when MLflow cannot be reached.
    """
    results: dict[str, Any] = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    runs: list[dict[str, Any]] = json.loads((folder / RUNS).read_text(encoding="utf-8"))
    figures = draw_figures(results, runs, folder / "figures")
    name = str(results["study"]["name"])
    config = LibraConfig(tracking=TrackingConfig(experiment=name, mlflow_uri=mlflow_setting), run=RunConfig(root=root))
    uri = mlflow_uri(config)
    if uri is None:
        return StudyPlace(folder=str(folder), mlflow_url=None, parent_run_id=None, num_runs=len(runs))
    experiment = open_experiment(config, uri)
    client = client_of(uri)
    with one_writer(uri):
        parent = _parent(client, experiment, results, folder, figures)
    for run in runs:
        with one_writer(uri):
            _child(client, experiment, parent, run, results)
    with one_writer(uri):
        client.set_terminated(parent, "FINISHED")
    return StudyPlace(folder=str(folder), mlflow_url=_url(uri, experiment), parent_run_id=parent, num_runs=len(runs))


def _parent(client: MlflowClient, experiment: str, results: Mapping[str, Any], folder: Path, figures: list[Path]) -> str:
    run = client.create_run(experiment, run_name=str(results["study"]["name"]), start_time=_now_ms())
    run_id = str(run.info.run_id)
    asked = {key: value for key, value in results["study"].items() if key != "sweeps"}  # they are in the results
    params = [Param(key, value) for key, value in flat_params(asked)]
    client.log_batch(run_id, params=params, tags=[RunTag("kind", "study"), RunTag("libra.folder", str(folder))])
    means = {f"over_baseline/{system}": float(interval["mean"]) for system, interval in results["over_baseline"].items()} | {
        f"bound/{name}": float(value) for name, value in results["bounds_tokens_per_s"].items()
    }
    client.log_batch(run_id, metrics=[Metric(key, value, _now_ms(), 0) for key, value in means.items()])
    client.log_table(run_id, data=_columns(results["rows"]), artifact_file="summary.json")
    client.log_artifact(run_id, str(folder / RESULTS))
    for figure in figures:
        client.log_artifact(run_id, str(figure), "figures")
    return run_id


def _child(client: MlflowClient, experiment: str, parent: str, run: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    name = f"{run['workload']}-{run['system']}-s{run['seed']}"
    child = client.create_run(experiment, run_name=name, start_time=_now_ms(), tags={"mlflow.parentRunId": parent})
    run_id = str(child.info.run_id)
    study = results["study"]
    tags = {
        "baseline": run["system"],
        "workload": run["workload"],
        "seed": run["seed"],
        "backend": "simulated",
        "plan.initial": run["first_plan"],
        "staleness": study["staleness"],
        "gpus": study["gpus"],
    }
    summary = [Metric(key, value, _now_ms(), 0) for key, value in run["summary"].items() if value is not None]
    client.log_batch(run_id, metrics=summary, tags=[RunTag(key, str(value)) for key, value in tags.items()])
    points = run["steps"][:: max(1, len(run["steps"]) // _MOST_POINTS)]
    series = [
        Metric(f"iteration/{key}", float(point[key]), _now_ms(), int(point["step"]))
        for point in points
        for key in ("t_iter_s", "t_train_s", "slowest_s", "train_gpus", "generated_per_trajectory")
    ]
    for start in range(0, len(series), _METRICS_PER_CALL):
        client.log_batch(run_id, metrics=series[start : start + _METRICS_PER_CALL])
    if run["decisions"]:
        client.log_table(run_id, data=_columns(run["decisions"]), artifact_file="decisions.json")
    client.set_terminated(run_id, "FINISHED")


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Intervals as three columns."""
    flat: list[dict[str, Any]] = []
    for row in rows:
        values: dict[str, Any] = {}
        for key, value in row.items():
            parts = {f"{key}.{part}": number for part, number in value.items()} if isinstance(value, dict) else {key: value}
            values.update(parts)
        flat.append(values)
    return {key: [row[key] for row in flat] for key in flat[0]}


def _url(uri: str, experiment: str) -> str:
    host = uri if uri.startswith("http") else "http://127.0.0.1:5000"
    return f"{host.rstrip('/')}/#/experiments/{experiment}/runs?compareRunsMode=CHART"


def _now_ms() -> int:
    return int(time.time() * 1000)
