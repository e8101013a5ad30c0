"""What keeps a training alive while Prefect's server is away, and its signals in order."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import httpx
from prefect import get_run_logger
from prefect.exceptions import PrefectHTTPStatusError
from tenacity import RetryCallState, RetryError, Retrying, retry_if_exception, stop_after_delay, wait_exponential

from libra_core.errors import DeadlineError

Result = TypeVar("Result")


def through_outage(call: Callable[[], Result], outage_s: float, logger: Callable[[str], None] | None = None) -> Result:
    """Call again while the Prefect server cannot be reached, for at most `outage_s` seconds.

    Raises:
        DeadlineError: when the server stays away longer.
    """
    report = logger or get_run_logger().warning

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        report(
            f"Prefect server is away ({type(error).__name__}), try {state.attempt_number}; waiting up to {outage_s:.0f} s in all"
        )

    retrying = Retrying(
        retry=retry_if_exception(is_outage),
        stop=stop_after_delay(outage_s),
        wait=wait_exponential(multiplier=0.5, max=15),
        before_sleep=before_sleep,
    )
    try:
        return retrying(call)
    except RetryError as error:
        raise DeadlineError(
            f"the iteration waited {outage_s:.0f} s for the Prefect server ({error.last_attempt.exception()!r}); start it again "
            "and resume the run, or raise orchestration.server_outage_s"
        ) from None


def is_outage(error: BaseException) -> bool:
    """The server cannot be reached or is just starting; a refusal is no outage."""
    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code in {502, 503, 504}
    return isinstance(error, httpx.TransportError)


@contextmanager
def kept_sigterm() -> Iterator[None]:
    """Put SIGTERM's handler back afterwards: `ray.init` installs its own, and Prefect would record a cancel as a crash."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def closed_undisturbed() -> Iterator[Callable[[], None]]:
    """Yield a call after which, until the end of the block, a further SIGINT or SIGTERM changes nothing."""
    handlers: dict[signal.Signals, Any] = {}

    def begin_to_close() -> None:
        if threading.current_thread() is threading.main_thread() and not handlers:
            handlers.update({number: signal.signal(number, _go_on) for number in (signal.SIGINT, signal.SIGTERM)})

    try:
        yield begin_to_close
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _go_on(signum: int, frame: FrameType | None) -> None: ...


@contextmanager
def heard_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a call that raises `KeyboardInterrupt` if Ctrl-C came since and was lost.

    Prefect swallows an interrupt that reaches a subflow after its last task and before its return.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: None
        return
    heard = threading.Event()

    def hear(signum: int, frame: FrameType | None) -> None:
        heard.set()
        handler(signum, frame)

    def raise_if_heard() -> None:
        if heard.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hear)
    try:
        yield raise_if_heard
    finally:
        signal.signal(signal.SIGINT, handler)
