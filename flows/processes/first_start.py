"""Prefect's own database is made by one process: servers that make it side by side fail on each other's tables.

Later starts find the tables and may happen at once. Imports no Prefect.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock, Timeout

from libra_core.errors import DeadlineError, ResourceError, on_the_disk

_DEADLINE_S = 300.0
_LEAST_BYTES = 32 << 20
"""A server that finds no room for its database dies with pages of traceback."""


@contextmanager
def one_makes_the_database(home: Path) -> Iterator[None]:
    """Start a server that uses `home` inside the block, up to its first answer; the first to come does so alone.

    Raises:
        DeadlineError: another process has been making the database for too long.
        ResourceError: the folder cannot be written.
    """
    _require_room(home)
    made = home / f".database-of-prefect-{version('prefect')}"
    if made.exists():
        yield
        return
    lock = FileLock(home / ".database.lock", thread_local=False)
    try:
        with on_the_disk(home, "choose another run.root or PREFECT_HOME"):
            lock.acquire(timeout=_DEADLINE_S)
    except Timeout:
        raise DeadlineError(
            f"another process has held {lock.lock_file} for {_DEADLINE_S:.0f} s while it starts Prefect; end it, or set "
            "PREFECT_HOME"
        ) from None
    try:
        if made.exists():
            lock.release()
        yield
        with on_the_disk(home):
            made.touch()
    finally:
        lock.release()


def _require_room(home: Path) -> None:
    with on_the_disk(home, "choose another run.root or PREFECT_HOME"):
        home.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(home).free
    if free < _LEAST_BYTES:
        raise ResourceError(
            f"{home} has {free >> 20} MiB free, and Prefect's database needs {_LEAST_BYTES >> 20}; free some space, or set "
            "PREFECT_HOME"
        )
