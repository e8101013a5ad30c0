"""Running a study and writing it down. A study's data pass through its folder, not through Prefect."""

import json
from collections.abc import Callable
from pathlib import Path

from libra_core.errors import on_the_disk
from libra_core.simulation.study.compare import compare
from libra_core.simulation.study.config import StudyConfig
from libra_core.tracking.run_folder import write_atomically
from libra_core.tracking.study import RESULTS, RUNS, StudyPlace, log_study
from tasks.options import core_task


@core_task(task_run_name="simulate-{study.name}")
def simulate_study(study: StudyConfig, folder: str, report: Callable[[str, float], None], processes: int) -> str:
    """Run every system; returns the folder that then holds results and runs."""
    result = compare(study, report, processes=processes)
    place = Path(folder)
    with on_the_disk(place):
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / RUNS, json.dumps(result.runs_json()))
        write_atomically(place / RESULTS, json.dumps(result.as_json(), indent=1))
    return folder


@core_task(task_run_name="log-study")
def record_study(folder: str, root: str, mlflow: str | None) -> StudyPlace:
    """Figures and MLflow."""
    return log_study(Path(folder), root, mlflow)
