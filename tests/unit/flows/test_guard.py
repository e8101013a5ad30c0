import contextlib
import os
import signal

import httpx
import pytest

from flows.guard import heard_interrupts, is_outage, kept_sigterm, through_outage
from libra_core.errors import DeadlineError


def _failing(times: int, error: Exception) -> tuple[list[int], object]:
    calls: list[int] = []

    def call() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return calls, call


def test_short_outage_is_waited_for() -> None:
    messages: list[str] = []
    calls, call = _failing(1, httpx.ConnectError("refused"))
    assert through_outage(call, outage_s=10.0, logger=messages.append) == "done"
    assert len(calls) == 2
    assert "Prefect server is away" in messages[0]


def test_long_outage_ends_in_a_sentence() -> None:
    _, call = _failing(10**6, httpx.ConnectTimeout("late"))
    with pytest.raises(DeadlineError, match=r"raise orchestration\.server_outage_s"):
        through_outage(call, outage_s=0.0, logger=lambda text: None)


def test_other_errors_pass_at_once() -> None:
    calls, call = _failing(10**6, ValueError("ours"))
    with pytest.raises(ValueError, match="ours"):
        through_outage(call, outage_s=10.0, logger=lambda text: None)
    assert len(calls) == 1


def test_refusal_is_no_outage() -> None:
    assert is_outage(httpx.ReadTimeout("slow"))
    assert not is_outage(RuntimeError("other"))


def test_sigterm_handler_survives_a_library_that_replaces_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with kept_sigterm():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_that_a_library_swallowed_is_raised_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with heard_interrupts() as raise_if_interrupted:
        raise_if_interrupted()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            raise_if_interrupted()
    assert signal.getsignal(signal.SIGINT) is before
