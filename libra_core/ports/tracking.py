"""Where metrics and artifacts go."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Tracker(Protocol):
    """May fail at start, never afterwards."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...

    def log_table(self, name: str, rows: Sequence[Mapping[str, object]]) -> None: ...

    def set_tags(self, tags: Mapping[str, str]) -> None: ...

    def finish(self, status: str) -> None:
        """`FINISHED`, `FAILED` or `KILLED`."""
        ...
