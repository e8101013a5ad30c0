"""Ending the records of a run whose process did not: the run folder, Prefect, MLflow. Each part is safe to repeat."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

from libra_core.config.loading import process_environment
from libra_core.errors import ResourceError
from libra_core.runtime.base.remains import remove_remains
from libra_core.tracking.run_folder import read_journal, update_journal
from libra_core.tracking.run_owner import owned

logger = logging.getLogger(__name__)

KILLED = "The process of the run was killed."


def conclude_run(facts: Mapping[str, Any], server: str | None) -> None:
    """`facts`: what `flows.lifecycle` told the watcher. `server`: address of the run's private Prefect server while it lives."""
    process_environment(Path(facts["root"]), quiet=True)
    parts: dict[str, Callable[[], None]] = {"the Prefect run": lambda: _end_flow_runs(facts.get("flow_run"), server)}
    if facts.get("run") and Path(facts["run"]).exists():
        parts["the run folder"] = lambda: _end_folder(Path(facts["run"]))
    for name, part in parts.items():
        try:
            part()
        except Exception:
            logger.exception("%s was not ended: %s", name, dict(facts))


def _end_folder(run_dir: Path) -> None:
    """Unless somebody resumes the run already, who sees to what was left."""
    try:
        with owned(run_dir):
            remove_session(run_dir)
            end_records(run_dir, "KILLED")
    except ResourceError as error:
        logger.warning("%s", error)


def remove_session(run_dir: Path) -> None:
    """What a session of this run left on the host, if its process did not remove it."""
    session = read_journal(run_dir).session
    if session is not None:
        remove_remains(session)
        update_journal(run_dir, session=None)


def end_records(run_dir: Path, status: str) -> None:
    """End the MLflow run that the journal names; one that has ended keeps its status."""
    journal = read_journal(run_dir)
    if journal.mlflow_uri is not None and journal.mlflow_run_id is not None:
        from libra_core.tracking.mlflow_tracker import end_run  # loads mlflow

        end_run(journal.mlflow_uri, journal.mlflow_run_id, status)


def _end_flow_runs(flow_run: str | None, server: str | None) -> None:
    if not flow_run:
        return
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.states import Crashed

    from flows.processes.flow_runs import end_flow_runs

    settings: AbstractContextManager[Any] = nullcontext()
    if server is not None:
        settings = temporary_settings({PREFECT_API_URL: server})
    with settings:
        end_flow_runs(UUID(flow_run), Crashed(message=KILLED))
