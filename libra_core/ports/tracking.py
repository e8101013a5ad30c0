"""Where metrics and artifacts go."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Tracker(Protocol):
    """May fail at start, never afterwards."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...

    def log_table(self, name: str, rows: Sequence[Mapping[str, object]]) -> None: ...

    def set_tags(self, tags: Mapping[str, str]) -> None: ...

    def log_file(self, path: Path) -> None:
        """A file of the run folder, as it is when it is delivered."""
        ...

    def finish(self, status: str) -> None:
        """`FINISHED`, `FAILED` or `KILLED`."""
        ...
