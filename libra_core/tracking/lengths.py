"""`lengths.jsonl`: tokens and tool seconds of the trained trajectories, one a line, as `libra plan --history` and `libra whatif`
read them. Bounded: of a long run the newest are kept."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from libra_core.tracking.run_folder import write_atomically
from libra_core.types.lengths import LengthRecord

FILE_NAME = "lengths.jsonl"
MOST = 65_536
"""Trajectories that a file is cut down to when it holds a quarter more."""


class LengthLog:
    """Owns the file of one run."""

    def __init__(self, run_dir: Path, *, first_step: int = 0) -> None:
        """Forgets what a resumed run does again."""
        self._path = run_dir / FILE_NAME
        kept = [line for line in self._lines() if _step_of(line) < first_step]
        self._count = len(kept)
        if self._path.exists():
            self._write(kept)

    def append(self, records: Sequence[LengthRecord]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(record)) + "\n" for record in records)
        self._count += len(records)
        if self._count > MOST * 5 // 4:
            kept = self._lines()[-MOST:]
            self._write(kept)
            self._count = len(kept)

    def _lines(self) -> list[str]:
        return self._path.read_text(encoding="utf-8", errors="replace").splitlines() if self._path.exists() else []

    def _write(self, lines: Sequence[str]) -> None:
        write_atomically(self._path, "".join(f"{line}\n" for line in lines))


def _step_of(line: str) -> float:
    """A line cut off by a crash counts as one that comes again."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return float("inf")
