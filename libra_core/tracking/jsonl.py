"""`metrics.jsonl`: one line per iteration, the source of every summary."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from libra_core.tracking.run_folder import write_atomically

FILE_NAME = "metrics.jsonl"
_OLDER = "account/"
"""Before the names `time/…`, in run folders of earlier versions."""


def append_metrics(run_dir: Path, step: int, metrics: Mapping[str, float]) -> None:
    append_line(run_dir / FILE_NAME, {"step": step, **metrics})


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Rows in step order; a line that a crash cut off, or damaged otherwise, is left out."""
    return list(rows_of_steps(run_dir / FILE_NAME))


def drop_metrics_from(run_dir: Path, step: int) -> None:
    """Forget iterations that a resumed run does again."""
    path = run_dir / FILE_NAME
    if path.exists():
        kept = [row for row in rows_of_steps(path) if row["step"] < step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """A line that a crash cut short is ended first, else it would take this one with it."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(row).encode() + b"\n")


def rows_of_steps(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that are objects with a `step`; none where there is no file."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield {name.replace(_OLDER, "time/", 1) if name.startswith(_OLDER) else name: value for name, value in row.items()}
