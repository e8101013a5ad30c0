"""What a session keeps on its host outside the run folder, and how it is removed. Imports nothing heavy: a watcher uses it."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import psutil

from libra_core.types.session import SessionRef

_END_S = 5.0


def shared_memory(namespace: str) -> Path:
    """Where a run's published weights and handed-over KV lie on each host; it goes with the run."""
    return Path("/dev/shm") / namespace


def temp_folder(namespace: str) -> Path:
    """Where a private Ray keeps its sockets and logs. Short: a socket's path may have 107 characters."""
    return Path("/tmp") / f"libra-ray-{namespace[-6:]}"


def remove_remains(session: SessionRef) -> None:
    """End what still runs, take the workers' logs into the run folder, remove the rest.

    Safe to repeat, and without the session's process.
    """
    end_private(session.namespace)
    remove_private(session.namespace, Path(session.run_dir) / "logs")
    if session.namespace:
        shutil.rmtree(shared_memory(session.namespace), ignore_errors=True)


def end_private(namespace: str) -> None:
    """End what a private cluster whose driver was killed still runs on this host: its servers name its folder."""
    folder = str(temp_folder(namespace))
    left = [process for process in psutil.process_iter() if process.pid != os.getpid() and _names(process, folder)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=_END_S)
    for process in stubborn:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _names(process: psutil.Process, folder: str) -> bool:
    try:
        return any(f"{folder}/" in f"{argument}/" for argument in process.cmdline()) and process.uids().real == os.getuid()
    except psutil.Error:
        return False


def remove_private(namespace: str, logs_to: Path) -> None:
    """Take the logs out of what a private cluster left in /tmp, and remove the rest."""
    temp = temp_folder(namespace)
    if not temp.exists():
        return
    logs_to.mkdir(parents=True, exist_ok=True)
    for log in temp.glob("session_*/logs/*worker-*.*"):
        if log.stat().st_size:
            with suppress(OSError):
                shutil.copy2(log, logs_to / log.name)
    shutil.rmtree(temp, ignore_errors=True)
