"""Joining or starting Ray: a private cluster on this machine, or somebody's by address. Ends what it started."""

import logging
import os
import shutil
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import ray

from libra_core.errors import ResourceError
from libra_core.runtime.placement import GPU_SLOT

logger = logging.getLogger(__name__)

NAMESPACE_PREFIX = "libra-"
_OBJECT_STORE_BYTES = 512 << 20
_KNOCK_S = 10.0
_END_S = 5.0


def temp_folder(namespace: str) -> Path:
    """Where a private Ray keeps its sockets and logs. Short: a socket's path may have 107 characters."""
    return Path("/tmp") / f"libra-ray-{namespace[-6:]}"


def start_private(namespace: str, *, gpu_slots: int | None) -> str:
    """A Ray of our own on this machine; returns its address.

    `gpu_slots` stands for GPUs on CPU hosts; None lets Ray count the real ones.
    """
    temp = temp_folder(namespace)
    with _own_signals():
        try:
            ray.init(
                address="local",
                namespace=namespace,
                resources=None if gpu_slots is None else {GPU_SLOT: float(gpu_slots)},
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(temp),
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            shutil.rmtree(temp, ignore_errors=True)
            raise ResourceError(f"Ray did not start on this machine: {error}") from error
    return ray.get_runtime_context().gcs_address


def join(address: str, namespace: str) -> None:
    """Connect to a running cluster; raises `ResourceError` when nothing answers there."""
    if ray.is_initialized():
        return
    _knock(address)
    with _own_signals():
        try:
            ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ResourceError(f"no Ray cluster answers at {address}: {error}; check backend.ray_address") from error


def _knock(address: str) -> None:
    """Ray itself tries for minutes where nothing listens. Addresses other than host:port are left to it."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise ResourceError(
            f"no Ray cluster answers at {address} within {_KNOCK_S:.0f} s ({error}); "
            "is it running, and is backend.ray_address right?"
        ) from error


def leave(namespace: str, logs_to: Path) -> None:
    """Disconnect; a private cluster ends with it, and its workers' logs move into the run folder."""
    with _own_signals():
        ray.shutdown()
    remove_private(namespace, logs_to)


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


class _own_signals:  # noqa: N801 - reads as a statement
    """Ray replaces the SIGTERM handler by one that exits; Prefect would then record a cancelled run as crashed."""

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        self._old = signal.getsignal(signal.SIGTERM) if self._main else None

    def __exit__(self, *_: object) -> None:
        if self._main and self._old is not None:
            signal.signal(signal.SIGTERM, self._old)
