"""A deadline for library calls that have none: the call runs in a thread, which is left behind when it does not return."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from libra_core.errors import DeadlineError

Result = TypeVar("Result")
_SETTLE_S = 4.0


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
        returned.wait(_SETTLE_S)  # it may be nearly done
        with suppress(DeadlineError):
            call_within(f"{what} to be taken back", undo, _SETTLE_S)
