"""`trace.json`: the run's time line in Chrome's trace event format, which https://ui.perfetto.dev opens.

Written as a JSON array that grows, so that memory stays bounded and a crash leaves all but the last line readable.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from libra_core.tracking.run_folder import write_atomically
from libra_core.types.trace import TraceSpan

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

    def append(self, spans: Iterable[TraceSpan]) -> None:
        lines = [json.dumps(event) for span in spans for event in self._events(span)]
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

    def _events(self, span: TraceSpan) -> Iterator[Mapping[str, object]]:
        """In microseconds; a lane is named once, before its first event."""
        is_known = span.lane in self._lanes
        number = self._lanes.setdefault(span.lane, len(self._lanes) + 1)
        if not is_known:
            yield {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": span.lane}}
        yield {
            "name": span.name,
            "cat": span.lane.rstrip("0123456789-"),
            "ph": "X",
            "ts": span.start_s * 1e6,
            "dur": (span.end_s - span.start_s) * 1e6,
            "pid": 1,
            "tid": number,
        }

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
