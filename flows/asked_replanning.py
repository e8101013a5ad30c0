"""`libra-replan`: asks a training in another process to replan, and shows what it decided.

Only the training's own process may call its actors: the request is a file in the run folder, the answer a line of its ledger.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger

from flows.logs import in_one_sentence
from flows.parameters import ReplanParameters
from flows.replanning import ask_for_replanning
from flows.running import chosen_run
from libra_core.errors import DeadlineError
from libra_core.tracking.decisions import read_decisions
from tasks.pictures import flush
from tasks.plan_words import decision_line
from tasks.replanning import show_decision

_POLL_S = 0.5


@flow(name="libra-replan", persist_result=False)
def replan(parameters: ReplanParameters) -> Mapping[str, Any]:
    """Ask, wait, show; returns the row of the ledger."""
    in_one_sentence()
    run_dir = chosen_run(Path(parameters.run) if parameters.run else None, Path(parameters.root))
    known = len(read_decisions(run_dir))
    ask_for_replanning(run_dir)
    row = wait_for_decision(run_dir, known, parameters.deadline_s)
    get_run_logger().info("%s, %s", run_dir.name, decision_line(row))
    show_decision(row)
    flush()
    return row


def wait_for_decision(run_dir: Path, known: int, deadline_s: float) -> Mapping[str, Any]:
    """The first row beyond those known; raises `DeadlineError`."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        rows = read_decisions(run_dir)
        if len(rows) > known:
            return rows[-1]
        time.sleep(_POLL_S)
    raise DeadlineError(
        f"the training in {run_dir} did not replan within {deadline_s:.0f} s: it may not run, have nothing to "
        "move, or be changing its plan right now"
    )
