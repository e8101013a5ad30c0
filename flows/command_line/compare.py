"""`libra compare`: the flow `libra-compare` in this process."""

import json
from pathlib import Path

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from flows.study_parameters import CompareParameters
from flows.views.board import put_up
from flows.views.compare_view import closing_lines, comparison_tables, sweep_lines
from flows.views.console import make_board
from libra_core.config.loading import process_environment


def run_compare(parameters: CompareParameters, *, as_json: bool) -> None:
    """Raises `LibraError` before the first run when the study is wrong."""
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
