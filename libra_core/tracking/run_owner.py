"""A run folder belongs to one process at a time. The lock is the kernel's, so it ends with the process, however that ends.

On a shared file system it is the server's and holds for all hosts, where the file system knows `flock` at all (NFS and Lustre
mounted so); without it `filelock` keeps a file that names host and process instead.
"""

import json
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from libra_core.config import LibraConfig
from libra_core.errors import ResourceError, on_the_disk
from libra_core.tracking.run_folder import make_run_folder, read_journal, write_atomically

_LOCK = ".owner.lock"
_OWNER = "owner.json"
_PATIENCE_S = 3.0
"""A look at who owns a folder holds its lock for an instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that trains a run, or did when it was killed."""

    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextmanager
def owned_run_folder(config: LibraConfig) -> Generator[Path]:
    """A fresh run folder, or the one that is resumed, and nobody else's until the block ends.

    Raises:
        CheckpointError: the folder to resume is no run folder.
        ResourceError: another process trains it, or the disk refuses.
    """
    resumed = config.run.resumed_folder
    if resumed is not None:
        read_journal(resumed)
        with owned(resumed):
            yield make_run_folder(config)
    else:
        run_dir = make_run_folder(config)
        with owned(run_dir):
            yield run_dir


@contextmanager
def owned(run_dir: Path) -> Generator[None]:
    """Be the folder's owner inside the block; raises `ResourceError` when another process is."""
    with on_the_disk(run_dir):
        lock = _taken(run_dir)  # before the name: who reads a name without the lock would believe it for an instant
        me = Owner(host=socket.gethostname(), pid=os.getpid(), since=time.strftime("%Y-%m-%d %H:%M:%S"))
        write_atomically(run_dir / _OWNER, json.dumps(asdict(me)))
    try:
        yield
    finally:
        with suppress(OSError):
            (run_dir / _OWNER).unlink()  # before the lock is let go: afterwards it would be the next owner's name
        lock.release()


def owner_of(run_dir: Path) -> Owner | None:
    """The process that trains this run now; None when none does."""
    if not (run_dir / _LOCK).exists():
        return None
    lock = _lock(run_dir)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return last_owner(run_dir) or Owner(host="another host", pid=0, since="a moment ago")
    lock.release()
    return None


def require_free(run_dir: Path) -> None:
    """Raises `ResourceError` when another process trains this run."""
    owner = owner_of(run_dir)
    if owner is not None:
        raise ResourceError(_taken_by(run_dir, owner))


def last_owner(run_dir: Path) -> Owner | None:
    """Of a folder that nobody owns: the process that ended without letting go of it."""
    try:
        return Owner(**json.loads((run_dir / _OWNER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _taken(run_dir: Path) -> FileLock:
    lock = _lock(run_dir)
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        raise ResourceError(_taken_by(run_dir, last_owner(run_dir))) from None
    return lock


def _taken_by(run_dir: Path, owner: Owner | None) -> str:
    return (
        f"{run_dir} is being trained by {owner or 'another process'}; wait for its end, or ask for it with `libra stop {run_dir}`"
    )


def _lock(run_dir: Path) -> FileLock:
    return FileLock(run_dir / _LOCK, thread_local=False)
