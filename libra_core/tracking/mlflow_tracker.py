"""MLflow as a destination of records. One run per training; a resumed training continues its run.

May fail while it is opened, with one sentence. Afterwards `BufferedTracker` keeps its failures from the training loop.
"""

import logging
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import urlsplit

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import set_tracking_uri
from sqlalchemy.exc import SQLAlchemyError

from libra_core.config import LibraConfig
from libra_core.config.databases import store_of
from libra_core.config.loading import kept_variable, tracking_uri_of_environment
from libra_core.errors import LibraError, ResourceError
from libra_core.tracking.buffered import Record
from libra_core.tracking.one_writer import one_writer, require_database

# It logs a traceback of eighty lines for what it raises as well; whoever catches that says it in a sentence.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)

_MAX_PARAM_LENGTH = 500
_PARAMS_PER_CALL = 100
_NAMED_BY = "tracking.mlflow_uri (else MLFLOW_TRACKING_URI)"
_UNKNOWN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""What stores answer to the id of a run that they do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabels:
    """How an MLflow run is found among others."""

    name: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


class MlflowRun:
    """One MLflow run; used by one thread at a time."""

    def __init__(self, client: MlflowClient, run_id: str, experiment_id: str, uri: str) -> None:
        self._client = client
        self.run_id = run_id
        self.experiment_id = experiment_id
        self.uri = uri

    @property
    def url(self) -> str:
        """Page of the run; for a sqlite store, where `make ui` shows it."""
        host = self.uri if self.uri.startswith("http") else "http://127.0.0.1:5000"
        return f"{host.rstrip('/')}/#/experiments/{self.experiment_id}/runs/{self.run_id}"

    def deliver(self, record: Record) -> None:
        """Send one record; raises whatever MLflow raises."""
        with one_writer(self.uri):
            self._deliver(record)

    def _deliver(self, record: Record) -> None:
        match record.kind:
            case "metrics":
                metrics = [Metric(key, value, record.timestamp_ms, record.step) for key, value in record.content.items()]
                self._client.log_batch(self.run_id, metrics=metrics)
            case "tags":
                tags = [RunTag(key, str(value)) for key, value in record.content.items()]
                self._client.log_batch(self.run_id, tags=tags)
            case "table":
                self._client.log_table(self.run_id, data=record.content, artifact_file=f"{record.name}.json")
            case "file":
                self._client.log_artifact(self.run_id, record.name)

    def end(self, status: str) -> None:
        """Set the run's status: `FINISHED`, `FAILED` or `KILLED`."""
        with one_writer(self.uri):
            self._client.set_terminated(self.run_id, status)


def mlflow_uri(config: LibraConfig) -> str | None:
    """The store that this configuration means, else the environment, else a file of the root; None when MLflow is off."""
    match config.tracking.mlflow_uri:
        case "off":
            return None
        case None:
            return tracking_uri_of_environment() or store_of(Path(config.run.root))
        case uri:
            return uri


def make_store(uri: str) -> None:
    """Its tables, where it is new; raises as `open_experiment` does."""
    with one_writer(uri), _in_a_sentence(uri):
        require_database(uri)
        client_of(uri)


def open_experiment(config: LibraConfig, uri: str) -> str:
    """Reach the store, which makes its tables where it is new, and make sure of the experiment; returns its id.

    Raises:
        ResourceError: when the store cannot be reached.
        DeadlineError: when another process keeps its file.
    """
    with one_writer(uri), _in_a_sentence(uri):
        require_database(uri)
        client = client_of(uri)
        experiment = client.get_experiment_by_name(config.tracking.experiment)
        if experiment is not None:
            return str(experiment.experiment_id)
        return str(client.create_experiment(config.tracking.experiment, artifact_location=_artifact_location(config, uri)))


def start_run(config: LibraConfig, uri: str, labels: RunLabels, run_id: str | None) -> MlflowRun:
    """A run with its params and tags, or `run_id` opened again; raises as `open_experiment` does."""
    experiment_id = open_experiment(config, uri)
    with one_writer(uri), _in_a_sentence(uri):
        client = client_of(uri)
        if run_id is not None:
            client.update_run(run_id, status="RUNNING")
        else:
            run = client.create_run(experiment_id, run_name=labels.name, start_time=int(time.time() * 1000))
            run_id = str(run.info.run_id)
            params = [Param(key, value) for key, value in flat_params(config.model_dump(mode="json"))]
            for start in range(0, len(params), _PARAMS_PER_CALL):
                client.log_batch(run_id, params=params[start : start + _PARAMS_PER_CALL])
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in labels.tags.items()])
    return MlflowRun(client, run_id, experiment_id, uri)


def knows_run(uri: str, run_id: str) -> bool:
    """Whether the store still has this run, not deleted; raises `ResourceError` when it cannot be asked."""
    with _in_a_sentence(uri):
        try:
            run = client_of(uri).get_run(run_id)
        except MlflowException as error:
            if error.error_code in _UNKNOWN:
                return False
            raise
        return bool(run.info.lifecycle_stage == "active")


def end_run(uri: str, run_id: str, status: str) -> None:
    """End the run of a process that died; a run that has already ended keeps its status. Raises as `open_experiment` does."""
    with one_writer(uri), _in_a_sentence(uri):
        client = client_of(uri)
        if client.get_run(run_id).info.status == "RUNNING":
            client.set_terminated(run_id, status)


@contextmanager
def _in_a_sentence(uri: str) -> Generator[None]:
    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError, ValueError) as error:
        if isinstance(error, LibraError):
            raise
        reason = shorten(str(error), 200, placeholder=" …")
        raise ResourceError(
            f"cannot use MLflow at {uri}: {reason}; start it, correct {_NAMED_BY}, "
            "or set the key to `off` to write only the run folder"
        ) from None


def flat_params(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`training.layout.tp` and so on, as MLflow wants them: text of at most 500 characters."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat_params(value, f"{name}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield name, str(value)[:_MAX_PARAM_LENGTH]


def client_of(uri: str) -> MlflowClient:
    """MLflow's own client of this store."""
    # log_table and log_artifact read the global store as well as the client's own.
    with kept_variable("MLFLOW_TRACKING_URI"):
        set_tracking_uri(uri)
    return MlflowClient(tracking_uri=uri)


def _artifact_location(config: LibraConfig, uri: str) -> str | None:
    """Absolute for a database on this machine: MLflow would otherwise use the folder that the process happens to be in."""
    if urlsplit(uri).scheme.startswith("http"):
        return None
    return (Path(config.run.root).resolve() / "mlartifacts" / config.tracking.experiment).as_uri()
