"""`libra-compare`: a simulated study of all systems, its table, its figures and its MLflow runs."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.runtime import flow_run

from flows.logs import in_one_sentence
from flows.names import REFUSED, asked_for
from flows.processes.flow_runs import remember_open
from flows.processes.watching import tell_watcher
from flows.study_parameters import CompareParameters
from flows.views.board import current_board
from flows.views.compare_view import markdown_table
from libra_core.errors import LibraError, on_the_disk
from libra_core.tracking.run_folder import fresh_folder
from libra_core.tracking.study import RESULTS, StudyPlace
from tasks.pictures import flush, publish
from tasks.study import record_study, simulate_study

TABLE_ARTIFACT, COMPARE_ARTIFACT = "comparison", "comparison-mlflow"


def comparison_run_name() -> str:
    """`study-48gpu-eta1`. Never raises, as `training_run_name`."""
    given: Any = flow_run.parameters.get("parameters")
    try:
        study = CompareParameters.model_validate(given).load()
    except (LibraError, ValueError, OSError):
        return f"{asked_for(given, 'study')}-{REFUSED}"
    return f"{study.name}-eta{study.staleness}"


@flow(name="libra-compare", flow_run_name=comparison_run_name, persist_result=False)
def comparison(parameters: CompareParameters) -> StudyPlace:
    """Simulate, record, show."""
    in_one_sentence()
    study = parameters.load()
    remember_open(str(flow_run.id or ""))
    tell_watcher(root=parameters.root, flow_run=str(flow_run.id or ""))
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    with on_the_disk(parameters.root):
        folder = fresh_folder(Path(parameters.root), f"{study.name}-eta{study.staleness}-{stamp}")
    simulate_study(study, str(folder), current_board().phase, parameters.processes)
    place = record_study(str(folder), parameters.root, parameters.mlflow)
    show_comparison(place)
    return place


def show_comparison(place: StudyPlace) -> None:
    """The table, and where MLflow compares the runs; pictures, which may be missing."""
    results = json.loads((Path(place.folder) / RESULTS).read_text(encoding="utf-8"))
    table = markdown_table(results)
    get_run_logger().info("study of %d runs in %s", place.num_runs, place.folder)
    publish("the table of the study", lambda: create_markdown_artifact(table, key=TABLE_ARTIFACT))
    url = place.mlflow_url
    if url is not None:
        publish("the link to MLflow", lambda: create_link_artifact(key=COMPARE_ARTIFACT, link=url, link_text="compare runs"))
    flush()
