"""Name and tags of an MLflow run."""

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from libra_core.config import LibraConfig, plan_of
from libra_core.tracking.mlflow_tracker import RunLabels


def run_labels(config: LibraConfig, run_dir: Path, flow_run_id: str, flow_run_url: str) -> RunLabels:
    """What distinguishes this run; empty values are left out."""
    plan = plan_of(config)
    layout, engines = plan.train, "+".join(f"tp{tp}x{count}" for tp, count in plan.rollout.engines)
    tags = {
        "baseline": config.tracking.baseline,
        "workload": config.workload.kind,
        "seed": str(config.seed),
        "backend": config.backend.kind,
        "plan.initial": f"train tp{layout.tp} pp{layout.pp} dp{layout.dp} | rollout {engines}",
        "run_dir": str(run_dir),
        "libra.version": _libra_version(),
        "git.commit": _git_commit(),
        "prefect.flow_run_id": flow_run_id,
        "prefect.flow_run_url": flow_run_url,
        "mlflow.note.content": f"`{run_dir}`" + (f"\n\n[Prefect flow run]({flow_run_url})" if flow_run_url else ""),
    }
    name = f"{config.workload.kind}-{config.tracking.baseline}-s{config.seed}"
    return RunLabels(name=name, tags={key: value for key, value in tags.items() if value})


def _libra_version() -> str:
    try:
        return version("libra")
    except PackageNotFoundError:
        return ""


def _git_commit() -> str:
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False, cwd=Path(__file__).parent)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
