"""Ends of flow runs that the flow itself could not see to. They run in the runner's process, which may not be the flow's."""

from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow, FlowStateHook
from pydantic import ValidationError

from flows.parameters import TrainParameters
from libra_core.errors import LibraError
from libra_core.tracking.run_folder import find_run, read_journal, update_journal
from tasks.connection import backend

Hook = FlowStateHook[..., Any]


def end_as(status: str) -> Hook:
    """A hook that ends the MLflow run with this status and closes the session, if the flow left them open.

    Prefect's runner names the hook's parameters when it calls it, Prefect's engine does not.
    """

    def hook(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
        try:
            config = TrainParameters.model_validate(flow_run.parameters.get("parameters", {})).load()
        except (ValidationError, LibraError):
            return  # the flow was refused for the same reason, before it had a run folder
        resumed = config.run.resumed_folder
        root = Path(config.run.root).resolve() if resumed is None else resumed.parent
        run_dir = find_run(root, str(flow_run.id))
        if run_dir is not None:
            end_run_folder(run_dir, status)

    hook.__name__ = f"end_as_{status.lower()}"
    return hook


def end_run_folder(run_dir: Path, status: str) -> None:
    """Idempotent: a run whose flow closed it has nothing left to end."""
    journal = read_journal(run_dir)
    if journal.session is not None:
        backend().close_session(journal.session)
        update_journal(run_dir, session=None)
    if journal.mlflow_uri is not None and journal.mlflow_run_id is not None:
        from libra_core.tracking.mlflow_tracker import end_run  # loads mlflow

        end_run(journal.mlflow_uri, journal.mlflow_run_id, status)
