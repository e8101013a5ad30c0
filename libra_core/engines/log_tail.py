"""The last words of a process that failed: the line of its log that tells why. Imports no heavy library."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

_TAIL_BYTES = 256 << 10
_LONGEST = 300
_PREFIX = re.compile(r"^\([\w-]+ pid=\d+\) ?(?:[A-Z]+ [\d-]+ [\d:.]+ \[[^\]]*\] ?)?")
"""What vLLM puts before each line of a traceback."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b(?:: .+)?$")
_ENDING = re.compile(
    r"died unexpectedly|out of memory|segmentation fault|fatal python error|terminate called|\bkilled\b|no space left",
    re.IGNORECASE,
)
_POINTS_BACK = re.compile(r"\babove\b", re.IGNORECASE)
_PID = re.compile(r"\bpid[:=]\s*(\d+)")


def telling_line(text: str) -> str:
    """The last exception that names a cause, else the last line that speaks of an end; empty where there is neither.

    Example: `"Traceback …\\n  File …\\nRuntimeError: no kernel for head size 16\\n"` gives the line of the `RuntimeError`.
    """
    lines = [_PREFIX.sub("", _COLOUR.sub("", line)).strip() for line in text.splitlines()]
    exceptions = [line for line in lines if _EXCEPTION.match(line) and not points_back(line)]
    endings = [line for line in lines if _ENDING.search(line) and not points_back(line)]
    telling = exceptions or endings
    return telling[-1][:_LONGEST] if telling else ""


def points_back(message: str) -> bool:
    """Whether an error only says that the cause was said before it."""
    return _POINTS_BACK.search(message) is not None


def last_words(logs: Iterable[Path]) -> str:
    """Of the newest log that tells anything; empty where none does or none can be read."""
    for log in sorted(logs, key=_written_s, reverse=True):
        line = telling_line(_tail(log))
        if line:
            return line
    return ""


def own_logs() -> list[Path]:
    """The files that this process and its children write their output to; none where that is a terminal or a pipe."""
    logs = {Path(os.path.realpath(f"/proc/self/fd/{stream}")) for stream in (1, 2)}
    return sorted(path for path in logs if path.is_file())


def logs_of_actor(ray_folder: Path, sentence: str) -> list[Path]:
    """Of the actor whose process id Ray's sentence names, in the folder of a Ray of this host."""
    pid = _PID.search(sentence)
    return sorted(ray_folder.glob(f"session_*/logs/worker-*-{pid.group(1)}.*")) if pid else []


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
