"""The process that the terminal or a scheduler knows, and the one that works: two, so that an end is orderly.

A signal of a terminal or of a process group reaches every process of that group at once: the work, Prefect's private server,
Ray and the engines would all end side by side, each missing the others. The work therefore runs in a session of its own, and the
front passes the first SIGINT, SIGTERM or SIGHUP on to it alone. Who owns what: the front owns the work's process and its watcher
(`flows.processes.watcher`); the work owns everything else. Order of an end: the work, what it left, the watcher, the front.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from flows.processes.watching import Watcher, start_watcher

INTERRUPTED = 130
"""Exit status after SIGINT, SIGTERM and SIGHUP."""
ENDS_WITHIN_S = 12.0
"""How long the work may take to end in order; afterwards it is killed, and the watcher ends what it left."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_AFTER_A_BAR = b"\x1b[?25h\n"
"""A progress bar whose process was killed leaves the cursor hidden, and in its line."""
_has_a_front: list[int] = []


def says_the_end() -> bool:
    """Whether a front says how this process ended."""
    return bool(_has_a_front)


def in_front(work: Callable[[], None], ends_within_s: float = ENDS_WITHIN_S) -> None:
    """Do the work in a process of its own, which returns from here; the calling process waits for it and exits as it does.

    `ends_within_s` is longer for work that ends commands with fronts of their own. Call it while the process has one thread only.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    hears = [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM]
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    watcher = start_watcher()
    front = os.getpid()
    child = os.fork()
    if child == 0:
        _become_the_work(front)
        work()
        return
    watcher.begin(child)
    raise SystemExit(_Front(child, watcher, ends_within_s).wait(hears))


def _become_the_work(front: int) -> None:
    _has_a_front.append(front)
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    hear_once()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    if os.getppid() != front:
        raise KeyboardInterrupt


def hear_once() -> None:
    """The first SIGINT or SIGTERM raises `KeyboardInterrupt`; the end that it begins is not disturbed by further ones."""
    heard: list[int] = []

    def hear(signum: int, frame: FrameType | None) -> None:
        heard.append(signum)
        if len(heard) == 1:
            raise KeyboardInterrupt

    for number in _ENDS:
        signal.signal(number, hear)


class _Front:
    """Waits for the work; a single thread, whose signal handlers only pass on and kill."""

    def __init__(self, child: int, watcher: Watcher, ends_within_s: float) -> None:
        self._child, self._watcher, self._ends_within_s = child, watcher, ends_within_s
        self._asked = self._forced = False

    def wait(self, hears: list[signal.Signals]) -> int:
        """The exit status for the whole."""
        for number in _ENDS:
            signal.signal(number, self._pass_on if number in hears else signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self._force)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        _, status = os.waitpid(self._child, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        self._watcher.finish()
        return self._status(os.waitstatus_to_exitcode(status))

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        if self._asked:
            return
        self._asked = True
        signal.setitimer(signal.ITIMER_REAL, self._ends_within_s)
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGINT)

    def _force(self, signum: int, frame: FrameType | None) -> None:
        self._forced = True
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)

    def _status(self, code: int) -> int:
        if code >= 0 and code != INTERRUPTED:
            return code
        if code < 0 and os.isatty(2):
            os.write(2, _AFTER_A_BAR)
        if self._forced:
            _say(f"interrupted; it did not end within {self._ends_within_s:.0f} s and was killed, and what it left was removed")
        elif self._asked or code == INTERRUPTED:
            _say("interrupted; everything that was started is closed")
        else:
            _say(f"its process was ended by {signal.Signals(-code).name}; what it left was removed")
        return INTERRUPTED if self._asked or code == INTERRUPTED else 128 - code


def _say(sentence: str) -> None:
    with suppress(OSError):
        os.write(2, f"libra: {sentence}\n".encode())
