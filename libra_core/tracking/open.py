"""Chooses the tracker that the configuration asks for."""

from dataclasses import dataclass
from pathlib import Path

from libra_core.config import LibraConfig
from libra_core.ports.tracking import Tracker
from libra_core.tracking.buffered import BufferedTracker
from libra_core.tracking.mlflow_tracker import RunLabels, knows_run, mlflow_uri, open_experiment, start_run
from libra_core.tracking.recorder import NullTracker
from libra_core.tracking.run_folder import read_journal, update_journal


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTracker:
    """A tracker and where its run is seen; None when MLflow is off."""

    tracker: Tracker
    run_id: str | None
    url: str | None


def check_tracker(config: LibraConfig, run_dir: Path) -> str | None:
    """Fail before anything expensive starts. Returns a sentence when a resumed run cannot go on in its MLflow run.

    It then gets a new one: the folder was moved, the store is another one, or the run was deleted there.

    Raises:
        ResourceError: MLflow cannot be used.
    """
    uri = mlflow_uri(config)
    if uri is None:
        return None
    open_experiment(config, uri)
    run_id = read_journal(run_dir).mlflow_run_id
    if run_id is None or knows_run(uri, run_id):
        return None
    update_journal(run_dir, mlflow_run_id=None, mlflow_uri=None)
    return f"MLflow at {uri} does not know run {run_id} of {run_dir}; the training goes on in a new MLflow run"


def open_tracker(config: LibraConfig, run_dir: Path, labels: RunLabels) -> OpenTracker:
    """Start the run's MLflow run, or continue the one that its journal names."""
    uri = mlflow_uri(config)
    if uri is None:
        return OpenTracker(tracker=NullTracker(), run_id=None, url=None)
    run = start_run(config, uri, labels, run_id=read_journal(run_dir).mlflow_run_id)
    update_journal(run_dir, mlflow_run_id=run.run_id, mlflow_uri=uri)
    return OpenTracker(tracker=BufferedTracker(run, run_dir), run_id=run.run_id, url=run.url)
