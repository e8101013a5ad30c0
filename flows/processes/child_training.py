"""One `libra train` as a child of this process, with output, exit status and end of its own.

Consumes nothing; waits for the child's end; unblocked by it, by the deadline, or by an interrupt, which is passed on. The child
is in a session of its own, as everything that a front starts: a terminal's Ctrl-C reaches it through here alone.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.processes.front import ENDS_WITHIN_S
from libra_core.shipped import HOME

_MAIN = "import sys; sys.path[:] = sys.argv.pop(1).split(':'); from flows.cli import main; main()"
_SAYS = "libra: "
_UNSAID = 3
"""Exit status of a child that had to be ended at its deadline, as of every wait that passes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnd:
    """How a child ended."""

    exit_code: int
    summary: dict[str, Any] | None
    """The JSON line of `libra train --json`, when it finished."""
    sentence: str
    """What it said of its end; empty when it finished."""


def train_in_a_child(config: str, overrides: Sequence[str], output: Path, deadline_s: float) -> ChildEnd:
    """Train and wait; stdout and stderr go to `output`.json and `output`.log.

    Raises:
        KeyboardInterrupt: this process was interrupted; the child has been interrupted first, and has ended.
    """
    path = ":".join(dict.fromkeys([str(HOME), *(str(Path(entry).resolve()) for entry in sys.path)]))
    sets = [part for override in overrides for part in ("--set", override)]
    command = [sys.executable, "-c", _MAIN, path, "train", config, *sets, "--json"]
    answer, log = output.with_suffix(".json"), output.with_suffix(".log")
    with answer.open("wb") as stdout, log.open("wb") as stderr:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True)
    overdue = ""
    try:
        code = child.wait(deadline_s)
    except subprocess.TimeoutExpired:
        overdue, code = f"it did not end within {deadline_s:.0f} s and was interrupted", _UNSAID
        _end(child)
    except KeyboardInterrupt:
        _end(child)
        raise
    summary = _summary(answer) if code == 0 else None
    said = "" if summary is not None else overdue or _last_sentence(log) or f"it ended with status {code} and said nothing"
    return ChildEnd(exit_code=code, summary=summary, sentence=said)


def _end(child: subprocess.Popen[bytes]) -> None:
    """In order if it can: its front gives the work `ENDS_WITHIN_S`, and sees to the rest. A watcher of ours ends what stays."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(2 * ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(ENDS_WITHIN_S)


def _summary(answer: Path) -> dict[str, Any] | None:
    lines = answer.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        result = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return result if isinstance(result, dict) else None


def _last_sentence(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.removeprefix(_SAYS) for line in lines if line.startswith(_SAYS)]
    return said[-1] if said else ""
