"""The run's artifacts in Prefect. They are pictures: when the server is away, the run goes on without them."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_progress_artifact, update_progress_artifact

from tasks.pictures import publish

PROGRESS_ARTIFACT = "training-progress"
MLFLOW_ARTIFACT = "mlflow-run"


class RunArtifacts:
    """Progress bar and link to MLflow of one flow run."""

    def __init__(self, title: str, mlflow_url: str | None) -> None:
        self._progress: UUID | None = _shown(lambda: create_progress_artifact(0.0, key=PROGRESS_ARTIFACT, description=title))
        if mlflow_url is not None:
            _shown(lambda: create_link_artifact(key=MLFLOW_ARTIFACT, link=mlflow_url, link_text="MLflow run"))

    def progress(self, fraction: float) -> None:
        artifact_id = self._progress
        if artifact_id is not None:
            publish("the progress", lambda: update_progress_artifact(artifact_id, progress=100.0 * fraction))


def _shown(publish: Callable[[], Any]) -> Any:
    try:
        return publish()
    except Exception as error:
        get_run_logger().warning("Prefect did not take an artifact: %s", error)
        return None
