import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from flows.logs import is_unexpected
from flows.views.console import BarBoard, PlainBoard, make_board, summary_table, where_to_read
from libra_core.errors import ResourceError
from libra_core.tracking.metrics import iteration_metrics
from libra_core.tracking.summary import RunPlace, RunSummary, summarise
from support.reports import iteration_report

ROOT = Path(__file__).parents[3]


def _summary() -> RunSummary:
    rows = [{"step": step, **iteration_metrics(iteration_report(step))} for step in range(6)]
    return summarise(rows, RunPlace(run_dir="runs/demo", mlflow_url="http://x/#/runs/1"), {"reward_mean": 0.5})


def _text(*things: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(*things, sep="\n")
    return stream.getvalue()


def test_summary_shows_what_is_promised() -> None:
    text = _text(summary_table(_summary()))
    for name in ("steps", "first 5", "last 5", "tokens/s", "T_rollout", "T_train", "T_iter", "overlap", "held-out"):
        assert name in text


def test_end_says_where_to_look() -> None:
    text = "\n".join(where_to_read(_summary()))
    for place in ("runs/demo", "make ui", "MLflow", "Prefect", "perfetto", "http://x/#/runs/1"):
        assert place in text


def test_pipe_gets_lines() -> None:
    stream = io.StringIO()
    with make_board(Console(file=stream, width=200)) as board:
        assert isinstance(board, PlainBoard)
        board.phase("starting Ray", 0.0)
        board.phase("starting Ray", 0.0)
        board.iteration(iteration_report(1), 40)
    assert stream.getvalue().splitlines()[0] == "starting Ray"
    assert stream.getvalue().splitlines()[1].startswith("iteration 2/40: reward 0.250")


def test_terminal_gets_bars() -> None:
    stream = io.StringIO()
    with make_board(Console(file=stream, force_terminal=True, width=160)) as board:
        assert isinstance(board, BarBoard)
        board.phase("starting Ray", 1.0)
        board.iteration(iteration_report(1), 40)
    assert "2/40" in stream.getvalue()


def test_json_is_alone_on_stdout() -> None:
    code = (
        "import os, subprocess\nfrom flows.command_line.output import json_output\n"
        "with json_output(True) as emit:\n"
        "    print('library'); subprocess.run(['echo', 'child']); emit({'steps': 1})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == {"steps": 1}
    assert "child" in done.stderr


@pytest.mark.parametrize(
    ("error", "shown"),
    [(ResourceError("no memory"), False), (KeyboardInterrupt(), False), (ZeroDivisionError(), True), (None, False)],
)
def test_console_leaves_expected_errors_to_the_command_line(error: BaseException | None, shown: bool) -> None:
    exc_info = (type(error), error, None) if error is not None else None
    record = logging.LogRecord("prefect.flow_runs", logging.ERROR, "x.py", 1, "failed", (), exc_info)
    assert is_unexpected(record) is shown
