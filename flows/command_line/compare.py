"""`libra compare`: the flow `libra-compare` in this process, or real trainings, each in a process of its own."""

import json
import time
from pathlib import Path

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from flows.study_parameters import CompareParameters
from flows.views.board import put_up
from flows.views.compare_view import closing_lines, comparison_tables, sweep_lines
from flows.views.console import make_board
from flows.views.trainings_view import trainings_lines, trainings_table
from libra_core.config.comparison import compares_trainings
from libra_core.config.loading import process_environment
from libra_core.errors import ResourceError, on_the_disk
from libra_core.tracking.run_folder import fresh_folder


def run_compare(parameters: CompareParameters, *, as_json: bool) -> None:
    """Raises `LibraError` before the first run when the study is wrong."""
    if compares_trainings(parameters.study):
        _run_trainings(parameters, as_json=as_json)
        return
    parameters.load()
    process_environment(Path(parameters.root), quiet=True)
    with json_output(as_json) as emit:
        with make_board(terminal(stderr=True)) as board:
            put_up(board)
            board.phase("reaching Prefect", 0.0)
            from flows.comparison import comparison
            from flows.logs import leave_errors_to_the_command_line
            from flows.processes.flow_runs import cancelled_when_interrupted
            from flows.processes.server import ensure_server
            from libra_core.tracking.study import RESULTS

            ensure_server()
            leave_errors_to_the_command_line()
            with cancelled_when_interrupted():
                place = comparison(parameters)
        results = json.loads((Path(place.folder) / RESULTS).read_text(encoding="utf-8"))
        if not as_json:
            console = terminal(width=170)
            console.print(*comparison_tables(results), sep="\n")
            console.print(*sweep_lines(results), sep="\n", highlight=False, soft_wrap=True)
            console.print(*closing_lines(results, place.mlflow_url, place.folder), sep="\n", highlight=False, soft_wrap=True)
        emit(results | {"folder": place.folder, "mlflow_url": place.mlflow_url})


def _run_trainings(parameters: CompareParameters, *, as_json: bool) -> None:
    """No flow and no server of its own: whatever this process did would be taken from the trainings, which have theirs.

    Raises:
        ConfigError: the comparison is wrong, or none of its baselines can run here; nothing was started.
        ResourceError: not one training finished.
    """
    comparison = parameters.load_trainings()
    root = Path(parameters.root).resolve()
    process_environment(root, quiet=True)
    with json_output(as_json) as emit:
        from flows.trainings import compare_trainings, runnable_trainings
        from libra_core.tracking.comparison import store_address

        trainings = runnable_trainings(comparison, parameters.overrides)
        with on_the_disk(root):
            folder = fresh_folder(root, f"{comparison.name}-{time.strftime('%Y%m%d-%H%M%S')}")
        with make_board(terminal(stderr=True)) as board:
            results = compare_trainings(comparison, trainings, folder, store_address(str(root), parameters.mlflow), board.phase)
        if not as_json:
            console = terminal(width=170)
            console.print(trainings_table(results))
            console.print(*trainings_lines(results), sep="\n", highlight=False, soft_wrap=True)
        emit(results)
    if not any(row["finished"] for row in results["rows"]):
        raise ResourceError(f"not one training of the comparison finished; see the logs in {folder}")
