"""Joining or starting Ray: a private cluster on this machine, or somebody's by address. Ends what it started."""

import logging
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import ray

from libra_core.errors import DeadlineError, ResourceError
from libra_core.runtime.base.placement import GPU_SLOT
from libra_core.runtime.base.remains import temp_folder

logger = logging.getLogger(__name__)

NAMESPACE_PREFIX = "libra-"
_OBJECT_STORE_BYTES = 512 << 20
_KNOCK_S = 10.0
_START_S = 120.0
_LEAVE_S = 20.0
_left = threading.Event()
"""Whether the cluster that was started last has been left."""


def start_private(namespace: str, *, gpu_slots: int | None) -> str:
    """A Ray of our own on this machine; returns its address.

    `gpu_slots` stands for GPUs on CPU hosts; None lets Ray count the real ones.
    """
    temp = temp_folder(namespace)
    _left.clear()
    with _own_signals():
        try:
            call_within(
                "Ray to start on this machine",
                lambda: ray.init(
                    address="local",
                    namespace=namespace,
                    resources=None if gpu_slots is None else {GPU_SLOT: float(gpu_slots)},
                    object_store_memory=_OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(temp),
                ),
                _START_S,
                undo=ray.shutdown,
                until=_left,  # Ray's servers die with the thread that started them
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
            call_within(
                f"the Ray cluster at {address} (backend.ray_address)",
                lambda: ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR),
                _START_S,
                undo=ray.shutdown,
            )
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


def leave() -> None:
    """Disconnect; a private cluster ends with it."""
    with _own_signals():
        try:
            call_within("Ray to end", ray.shutdown, _LEAVE_S)
        except DeadlineError as error:
            logger.warning("%s; what runs of it on this machine is ended", error)
        _left.set()


class _own_signals:  # noqa: N801 - reads as a statement
    """Ray replaces the SIGTERM handler by one that exits; Prefect would then record a cancelled run as crashed."""

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        self._old = signal.getsignal(signal.SIGTERM) if self._main else None

    def __exit__(self, *_: object) -> None:
        if self._main and self._old is not None:
            signal.signal(signal.SIGTERM, self._old)


Result = TypeVar("Result")
_UNDO_S = 4.0


def call_within(
    what: str,
    call: Callable[[], Result],
    deadline_s: float,
    *,
    undo: Callable[[], object] | None = None,
    until: threading.Event | None = None,
) -> Result:
    """Raises what the call raises.

    Args:
        undo: takes back what the call has done when the caller is interrupted or gives up.
        until: the thread lives on until then. Processes that the call starts may be bound to the thread that started them.

    Raises:
        DeadlineError: it did not return in time.
    """
    outcome: list[Result] = []
    failure: list[BaseException] = []
    returned = threading.Event()

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            failure.append(error)
        returned.set()
        if until is not None and not failure:
            until.wait()  # unbounded: a daemon thread, which ends with the process at the latest

    threading.Thread(target=work, name=f"libra: {what}", daemon=True).start()  # failure: raised below
    try:
        in_time = returned.wait(deadline_s)
    except BaseException:  # an interrupt
        _take_back(returned, what, undo)
        raise
    if not in_time:
        _take_back(returned, what, undo)
        raise DeadlineError(f"the flow waited {deadline_s:.0f} s for {what}, and it has not come back")
    if failure:
        raise failure[0]
    return outcome[0]


def _take_back(returned: threading.Event, what: str, undo: Callable[[], object] | None) -> None:
    if undo is not None:
        returned.wait(_UNDO_S)  # it may be nearly done
        with suppress(DeadlineError):
            call_within(f"{what} to be taken back", undo, _UNDO_S)
