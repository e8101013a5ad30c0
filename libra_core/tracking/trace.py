"""`trace.json`: the run's time line in Chrome's trace event format, which https://ui.perfetto.dev opens.

Written as a JSON array that grows, so that memory stays bounded and a crash leaves all but the last line readable.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from libra_core.tracking.run_folder import write_atomically

FILE_NAME = "trace.json"
_END = "\n]\n"


class TraceWriter:
    """Owns the trace file of one run; not for several processes at once."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE_NAME
        self._is_empty = True
        self._lanes: dict[str, int] = {}
        """Number of each named lane: trace viewers want whole numbers as `tid`."""
        if self._path.exists():
            self._reopen()
        else:
            self._path.write_text("[", encoding="utf-8")

    def append(self, events: Iterable[Mapping[str, object]]) -> None:
        """Add Chrome trace events: `name`, `ph`, `ts` and `dur` (microseconds), `pid`, and `tid`, a number or a lane's name."""
        lines = [json.dumps(item) for event in events for item in self._numbered(event)]
        if not lines:
            return
        separator = "\n" if self._is_empty else ",\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(separator + ",\n".join(lines))
        self._is_empty = False

    def close(self) -> None:
        """Make the file a complete JSON document."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_END)

    def _numbered(self, event: Mapping[str, object]) -> list[Mapping[str, object]]:
        lane = event.get("tid")
        if not isinstance(lane, str):
            return [event]
        is_known = lane in self._lanes
        number = self._lanes.setdefault(lane, len(self._lanes) + 1)
        numbered: Mapping[str, object] = {**event, "tid": number}
        if is_known:
            return [numbered]
        name = {"name": "thread_name", "ph": "M", "pid": event.get("pid", 1), "tid": number, "args": {"name": lane}}
        return [name, numbered]

    def _reopen(self) -> None:
        lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
        events = [event for event in map(_event, lines) if event is not None]
        self._lanes = {str(event["args"]["name"]): event["tid"] for event in events if _names_a_lane(event)}
        self._is_empty = not events
        write_atomically(self._path, "[" + ",".join("\n" + json.dumps(event) for event in events))


def _names_a_lane(event: Mapping[str, Any]) -> bool:
    args = event.get("args")
    return event.get("name") == "thread_name" and isinstance(args, dict) and "name" in args and isinstance(event.get("tid"), int)


def _event(line: str) -> dict[str, Any] | None:
    """One line of the file; None for the closing bracket or a line cut off by a crash."""
    try:
        event = json.loads(line.rstrip().rstrip(","))
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
