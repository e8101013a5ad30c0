"""What trainings that were compared amount to: figures of a run folder, rows of a baseline, and both in MLflow.

A run's figures have the names of the simulated study's (`libra_core.simulation.study.summary`), where both know the quantity.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag

from libra_core.config import LibraConfig, plan_of
from libra_core.config.comparison import ComparisonConfig
from libra_core.config.databases import store_of
from libra_core.config.loading import tracking_uri_of_environment
from libra_core.config.runtime import RunConfig, TrackingConfig
from libra_core.tracking.mlflow_tracker import client_of, open_experiment
from libra_core.tracking.one_writer import one_writer
from libra_core.tracking.run_folder import read_journal

RESULTS = "results.json"
_HOUR = 3600.0
_REWARD_STEPS = 3
"""First and last steps of a run whose mean rewards are compared."""
_OF_T_ITER = {
    "trainer_busy": "time/trainer_busy_s",
    "trainer_waits_groups": "time/trainer_waits_groups_s",
    "trainer_waits_age": "time/trainer_waits_age_s",
    "trainer_blocked": "time/trainer_waits_publication_s",
    "fleet_reprefill": "time/fleet_reprefill_s",
    "fleet_paused": "time/fleet_paused_s",
    "fleet_starved": "time/fleet_starved_s",
}
"""Figures that are shares of the counted steps' time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """What became of one run."""

    baseline: str
    seed: int
    status: Literal["finished", "failed", "refused"]
    """`refused`: its backend cannot run this baseline, and nothing was started."""
    reason: str = ""
    """The run's own sentence; empty when it finished."""
    exit_code: int | None = None
    run_dir: str | None = None
    backend: str = ""
    plan: str = ""
    staleness: int = 0
    gpus: int = 0
    """Slots of both sides; of colocated ones, which are the same, once."""
    figures: dict[str, float | None] = field(default_factory=dict[str, float | None])


def gpus_of(config: LibraConfig) -> int:
    """Slots that a run of this configuration holds."""
    plan = plan_of(config)
    sides = (plan.train.num_gpus, plan.rollout.num_gpus)
    return max(sides) if config.rollout.mode == "colocated" else sum(sides)


def plan_sentence(config: LibraConfig) -> str:
    """As the study names first plans: `24 = tp2 pp4 dp3 · 3 x tp8 streamed`."""
    plan = plan_of(config)
    layout = " ".join(f"{name}{size}" for name, size in (("tp", plan.train.tp), ("pp", plan.train.pp), ("dp", plan.train.dp)))
    engines = " + ".join(f"{count} x tp{tp}" for tp, count in plan.rollout.engines)
    hybrids = f", {plan.hybrid_replicas} of them hybrid" if plan.hybrid_replicas else ""
    manner = " in turns" if config.rollout.mode == "colocated" else " streamed" if config.streamed else ""
    return f"{plan.train.num_gpus} = {layout} · {engines}{hybrids}{manner}"


def figures_of(rows: Sequence[Mapping[str, Any]], config: LibraConfig, comparison: ComparisonConfig) -> dict[str, float | None]:
    """Of a run's rows of `metrics.jsonl`, skipped steps left out of all that is a rate; None: it has no such figure.

    Raises `ValueError` for a run that took too few steps to count.
    """
    counted = rows[comparison.skipped_steps :]
    if not counted:
        raise ValueError(f"the run took {len(rows)} steps and the first {comparison.skipped_steps} do not count")
    seconds = sum(row["iteration/t_iter_s"] for row in counted)
    learns = config.backend.kind != "simulated"  # simulated trajectories have no rewards
    plan = plan_of(config)
    shares = {name: sum(row.get(key, 0.0) for row in counted) / seconds for name, key in _OF_T_ITER.items()}
    return {
        "tokens_per_s": sum(row["rollout/generated_tokens"] for row in counted) / seconds,
        "t_iter_s": seconds / len(counted),
        "t_train_s": fmean(row["iteration/t_train_s"] for row in counted),
        **shares,
        "steps_per_hour": len(counted) / seconds * _HOUR,
        "staleness_mean": fmean(row["rollout/staleness_mean_versions"] for row in counted),
        "staleness_max": max(row["rollout/staleness_max_versions"] for row in counted),
        "train_gpus": float(plan.train.num_gpus),
        "rollout_tp": float(max(plan.rollout.degrees)),
        "wall_s": float(rows[-1]["progress/wall_s"]),
        "reward_last": _mean_reward(rows[-_REWARD_STEPS:]) if learns else None,
        "time_to_reward_s": _time_to_reward(rows, comparison) if learns else None,
        "reward_per_gpu_hour": _reward_per_gpu_hour(rows, gpus_of(config)) if learns else None,
    }


def _mean_reward(rows: Sequence[Mapping[str, Any]]) -> float:
    return fmean(row["reward/mean"] for row in rows)


def _time_to_reward(rows: Sequence[Mapping[str, Any]], comparison: ComparisonConfig) -> float | None:
    """Training time until the mean reward of `reward_window` steps first reaches the target; None: not asked, or not reached."""
    window, target = comparison.reward_window, comparison.reward_target
    ends = range(window, len(rows) + 1) if target is not None else ()
    crossed = (rows[end - 1]["progress/wall_s"] for end in ends if _mean_reward(rows[end - window : end]) >= (target or 0.0))
    return next((float(seconds) for seconds in crossed), None)


def _reward_per_gpu_hour(rows: Sequence[Mapping[str, Any]], gpus: int) -> float:
    """What the mean reward gained from the first steps to the last, over the hours of all slots."""
    gained = _mean_reward(rows[-_REWARD_STEPS:]) - _mean_reward(rows[:_REWARD_STEPS])
    return gained / (gpus * float(rows[-1]["progress/wall_s"]) / _HOUR)


def results_of(comparison: ComparisonConfig, outcomes: Sequence[ComparedRun]) -> dict[str, Any]:
    """Everything that the table, MLflow and `--json` show."""
    return {
        "comparison": comparison.model_dump(mode="json"),
        "rows": [_row(comparison, name, outcomes) for name in comparison.files],
        "runs": [asdict(outcome) for outcome in outcomes],
    }


def _row(comparison: ComparisonConfig, name: str, outcomes: Sequence[ComparedRun]) -> dict[str, Any]:
    """Means over the runs that finished; a reason for each that did not. A ratio is taken run by run of one seed."""
    mine = [outcome for outcome in outcomes if outcome.baseline == name]
    done = [outcome for outcome in mine if outcome.status == "finished"]
    rates = {o.seed: o.figures["tokens_per_s"] for o in outcomes if o.baseline == comparison.reference and o.figures}
    ratios = [_rate(outcome) / rate for outcome in done if (rate := rates.get(outcome.seed))]
    times = [outcome.figures["time_to_reward_s"] for outcome in done]
    reached = [seconds for seconds in times if seconds is not None]
    return {
        "baseline": name,
        "plan": mine[0].plan if mine else "",
        "gpus": mine[0].gpus if mine else 0,
        "finished": len(done),
        "tokens_per_s": _spread([_rate(outcome) for outcome in done]),
        "over_reference": _spread(ratios),
        "t_iter_s": _spread([outcome.figures["t_iter_s"] for outcome in done]),
        "reward_last": _spread([outcome.figures["reward_last"] for outcome in done]),
        "time_to_reward_s": _spread(reached),
        "reached": len(reached),
        "reward_per_gpu_hour": _spread([outcome.figures["reward_per_gpu_hour"] for outcome in done]),
        "reasons": list(dict.fromkeys(outcome.reason for outcome in mine if outcome.reason)),
    }


def _rate(outcome: ComparedRun) -> float:
    return outcome.figures["tokens_per_s"] or 0.0


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean, least and most: two or three seeds carry no interval."""
    known = [value for value in values if value is not None]
    return {"mean": fmean(known), "least": min(known), "most": max(known)} if known else None


def store_address(root: str, setting: str | None) -> str:
    """For all runs of a comparison, the same; `off` for none."""
    return setting or tracking_uri_of_environment() or store_of(Path(root))


def open_comparison(comparison: ComparisonConfig, root: str, uri: str) -> str | None:
    """The experiment of all its runs, made before the first of them; None when MLflow is off. Raises `ResourceError`."""
    if uri == "off":
        return None
    tracking = TrackingConfig(experiment=comparison.name, mlflow_uri=uri)
    return open_experiment(LibraConfig(tracking=tracking, run=RunConfig(root=root)), uri)


def log_comparison(folder: Path, results: Mapping[str, Any], uri: str, experiment: str) -> str:
    """A parent run with the table; the trainings' own runs become its children and get their figures. Returns its page."""
    client = client_of(uri)
    with one_writer(uri):
        parent = client.create_run(experiment, run_name=str(results["comparison"]["name"]), start_time=_now_ms())
        parent_id = str(parent.info.run_id)
        client.log_batch(parent_id, tags=[RunTag("kind", "comparison"), RunTag("libra.folder", str(folder))])
        client.log_table(parent_id, data=_table(results["rows"]), artifact_file="summary.json")
        client.log_artifact(parent_id, str(folder / RESULTS))
    for run in results["runs"]:
        run_id = read_journal(Path(run["run_dir"])).mlflow_run_id if run["run_dir"] else None
        if run_id is not None:
            with one_writer(uri):
                _log_figures(client, run_id, parent_id, run)
    with one_writer(uri):
        client.set_terminated(parent_id, "FINISHED")
    host = uri if uri.startswith("http") else "http://127.0.0.1:5000"
    return f"{host.rstrip('/')}/#/experiments/{experiment}/runs?compareRunsMode=CHART"


def _log_figures(client: MlflowClient, run_id: str, parent_id: str, run: Mapping[str, Any]) -> None:
    """Baseline, workload, seed, backend and plan are tags that every training has."""
    tags = {"mlflow.parentRunId": parent_id, "gpus": run["gpus"], "staleness": run["staleness"]}
    metrics = [Metric(key, value, _now_ms(), 0) for key, value in run["figures"].items() if value is not None]
    client.log_batch(run_id, metrics=metrics, tags=[RunTag(key, str(value)) for key, value in tags.items()])


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Spreads as their means, reasons as text."""
    return {key: [_cell(row[key]) for row in rows] for key in rows[0]}


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return value["mean"]  # pyright: ignore[reportUnknownVariableType]
    return "; ".join(str(item) for item in value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _now_ms() -> int:
    return int(time.time() * 1000)
