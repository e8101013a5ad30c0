"""A tracker that never stops a run: what cannot be delivered waits in the run folder.

One thread delivers, in order. The calling thread only appends to the queue, so a slow or dead server costs a step nothing.
MLflow's own asynchronous logging is not used: it reports errors only when flushed, and has lost the values by then.
Shut-down order: `finish` asks the thread to drain within a deadline, then writes the rest to the run folder.
"""

import json
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, Protocol

from pydantic import TypeAdapter, ValidationError

from libra_core.tracking.run_folder import write_atomically

_LOG = logging.getLogger(__name__)
PENDING_FILE = "tracking-pending.json"

_END_ATTEMPTS = 3
_OF_A_DATABASE = re.compile(r"\(raised as a result of [^)]*\)|\[SQL: .*", re.S)

RecordKind = Literal["metrics", "tags", "table", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One thing to deliver, as plain JSON."""

    kind: RecordKind
    content: dict[str, Any]
    name: str = ""
    """Of a table or a file."""
    step: int = 0
    timestamp_ms: int


_PENDING = TypeAdapter(list[Record])


class Destination(Protocol):
    """Where records go; any call may raise."""

    def deliver(self, record: Record) -> None: ...

    def end(self, status: str) -> None: ...


class BufferedTracker:
    """Implements `ports.tracking.Tracker`. The queue is shared under a lock; only the thread talks to the destination."""

    def __init__(self, destination: Destination, run_dir: Path, *, retry_s: float = 5.0, drain_s: float = 30.0) -> None:
        self._destination = destination
        self._pending_path = run_dir / PENDING_FILE
        self._retry_s = retry_s
        self._drain_s = drain_s
        self._queue: deque[Record] = deque(_read_pending(self._pending_path))
        self._changed = threading.Condition()
        self._closing = False
        self._last_error: str | None = None
        self._unwritten = ""
        """Why the pending file could not be written the last time; said once."""
        self._thread = threading.Thread(target=self._deliver_forever, name="tracker", daemon=True)  # failure: logged
        self._thread.start()

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._put(Record(kind="metrics", content=dict(metrics), step=step, timestamp_ms=_now_ms()))

    def log_table(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Add a table; the file is called `<name>.json`."""
        columns = {key: [row.get(key) for row in rows] for key in rows[0]} if rows else {}
        self._put(Record(kind="table", name=name, content=columns, timestamp_ms=_now_ms()))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self._put(Record(kind="tags", content=dict(tags), timestamp_ms=_now_ms()))

    def log_file(self, path: Path) -> None:
        """Add a file of the run folder as it is when it is delivered."""
        self._put(Record(kind="file", name=str(path), content={}, timestamp_ms=_now_ms()))

    def finish(self, status: str) -> None:
        """Deliver what is left within the deadline, then end the run; never raises."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self._drain_s)
        if self._queue:
            with self._changed:
                self._save_pending()
            where = f"they lie in {self._pending_path} and are sent when the run is resumed"
            if self._unwritten:
                where = f"{self._pending_path} could not take them either ({self._unwritten}), and they are lost"
            _LOG.warning("%d records did not reach the tracker (%s); %s", len(self._queue), self._last_error or "deadline", where)
        self._end(status)

    def _end(self, status: str) -> None:
        for attempt in range(1, _END_ATTEMPTS + 1):
            try:
                return self._destination.end(status)
            except Exception as error:
                if attempt == _END_ATTEMPTS:
                    _LOG.warning("could not mark the tracked run as %s: %s", status, in_short(error))
            time.sleep(min(self._retry_s, 1.0))
        return None

    def _put(self, record: Record) -> None:
        with self._changed:
            self._queue.append(record)
            if self._last_error is not None:
                self._save_pending()
            self._changed.notify_all()

    def _deliver_forever(self) -> None:
        """Consumes the queue. Waits for records, or `retry_s` after a failure. Unblocked by `_put` and `finish`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                record = self._queue[0]
            if self._try_deliver(record):
                self._delivered()
            elif self._closing:
                return
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, timeout=self._retry_s)

    def _try_deliver(self, record: Record) -> bool:
        """A monitor must not end a run: whatever the destination raises is logged and tried again."""
        try:
            self._destination.deliver(record)
        except Exception as error:
            with self._changed:
                if self._last_error is None:
                    _LOG.warning("tracking fails (%s); records wait in %s", in_short(error), self._pending_path)
                self._last_error = in_short(error)
                self._save_pending()
            return False
        return True

    def _delivered(self) -> None:
        with self._changed:
            self._queue.popleft()
            if self._last_error is not None and not self._queue:
                _LOG.warning("tracking works again and has caught up")
                self._last_error = None
            if not self._queue:
                with suppress(OSError):  # the thread must outlive a disk that refuses; a resume sends it once more
                    self._pending_path.unlink(missing_ok=True)

    def _save_pending(self) -> None:
        try:
            write_atomically(self._pending_path, json.dumps([asdict(record) for record in self._queue], default=str))
            self._unwritten = ""
        except OSError as error:
            if not self._unwritten:
                _LOG.warning("cannot write %s: %s", self._pending_path, error.strerror)
            self._unwritten = str(error.strerror)


def in_short(error: Exception) -> str:
    """One line: a database adds its statement and all of its values."""
    return shorten(_OF_A_DATABASE.sub("", str(error)), 200, placeholder=" …") or type(error).__name__


def _read_pending(path: Path) -> list[Record]:
    """What an earlier process could not deliver; a damaged file is set aside, for a monitor must not end a run."""
    try:
        return _PENDING.validate_json(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValidationError) as error:
        aside = path.with_name(f"{path.name}.damaged")
        _LOG.warning("%s is damaged (%s); its records are not sent, it is kept as %s", path, _first_line(error), aside.name)
        with suppress(OSError):
            path.replace(aside)
        return []


def _first_line(error: Exception) -> str:
    return error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)


def _now_ms() -> int:
    return int(time.time() * 1000)
