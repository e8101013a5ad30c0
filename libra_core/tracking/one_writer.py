"""One process at a time writes to a database that is a file: runs of one root share MLflow's.

SQLite makes a second writer wait only where it has not read before; MLflow reads first, also to find out whether its tables
have to be made. Servers need none of this.
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from libra_core.errors import DeadlineError, ResourceError, on_the_disk

_DEADLINE_S = 120.0
_BUSY_S = 20.0


def database_file(uri: str) -> Path | None:
    """The file that an address like `sqlite:////runs/mlflow.db` means; None for a server."""
    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):
        return None
    named = url.database if url.get_backend_name() == "sqlite" else None
    return Path(named) if named and named != ":memory:" else None


@contextmanager
def one_writer(uri: str) -> Generator[None]:
    """Nobody else who asks writes to the database inside the block; at once for a server.

    Raises:
        DeadlineError: another process holds it for too long.
        ResourceError: its folder cannot be written.
    """
    file = database_file(uri)
    if file is None:
        yield
        return
    lock = FileLock(file.with_name(f".{file.name}.lock"), thread_local=False)
    try:
        with on_the_disk(file.parent, "name another store in tracking.mlflow_uri, or set it to `off`"):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=_DEADLINE_S)
    except Timeout:
        raise DeadlineError(
            f"another process has held {lock.lock_file} for {_DEADLINE_S:.0f} s; end it, or set tracking.mlflow_uri"
        ) from None
    try:
        yield
    finally:
        lock.release()


def require_database(uri: str) -> None:
    """Open and lock a file's database, which says at once what MLflow would try for minutes; raises `ResourceError`."""
    file = database_file(uri)
    if file is None:
        return
    try:
        with closing(sqlite3.connect(file, timeout=_BUSY_S)) as database:
            database.execute("PRAGMA schema_version").fetchone()
            database.execute("BEGIN IMMEDIATE")
            database.rollback()
    except sqlite3.Error as error:
        raise ResourceError(
            f"{file} cannot be used as MLflow's database ({error}); restore it, move it away to begin a new one, or set "
            "tracking.mlflow_uri"
        ) from None
