"""`metrics.jsonl`: one line per iteration, the source of every summary."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from libra_core.tracking.run_folder import write_atomically

FILE_NAME = "metrics.jsonl"


def append_metrics(run_dir: Path, step: int, metrics: Mapping[str, float]) -> None:
    with (run_dir / FILE_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **metrics}) + "\n")


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Rows in step order; a line cut off by a crash is left out."""
    return list(_rows(run_dir / FILE_NAME))


def drop_metrics_from(run_dir: Path, step: int) -> None:
    """Forget iterations that a resumed run does again."""
    path = run_dir / FILE_NAME
    if path.exists():
        kept = [row for row in _rows(path) if row["step"] < step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
