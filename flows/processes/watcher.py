"""The watcher of a process: waits for its end and then ends what it left, whatever ended it. Runs as a process of its own.

Consumes facts on stdin, one JSON object a line; waits for the end of its owner; unblocked by that alone. What belongs to the
owner are the processes of its session, those it was once seen above, and all below them. MLflow and Prefect are loaded only where
a run was left open.
"""

import json
import os
import re
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flows.processes.front import ENDS_WITHIN_S

_POLL_S = 1.0
_SHARE = 50.0
"""A look takes at most one part in so many of the time, on hosts with thousands of processes too."""
_SELF_S = 2.0
"""Engines and resource trackers see the end of their owner themselves within this time, and clean up."""
_KILL_S = 10.0
_SERVER_S = 5.0
_PREFECT = "prefect.server.api.server:create_app"
_LAST = ("multiprocessing.resource_tracker", _PREFECT)
"""Command lines of what is ended last: it removes, or records, what the others left."""
_SHARED_MEMORY = "/dev/shm/"
_SEMAPHORE = re.compile(r"sem\.\w+-(\d+)-\w+")


class Belongings:
    """Processes of an owner, also after it is gone."""

    def __init__(self, owner: int) -> None:
        process = psutil.Process(owner)
        self._owner = (owner, process.create_time())
        self._leads_session = os.getsid(owner) == owner
        self._seen: dict[int, float] = {}
        self.ever: set[int] = set()
        """Process ids of all that were ever seen."""

    def find(self) -> list[psutil.Process]:
        """Those that are alive, the owner and this process left out."""
        every = {process.pid: process for process in psutil.process_iter()}
        parents = {pid: _parent(process) for pid, process in every.items()}
        mine = {pid for pid, process in every.items() if self._belongs(process)}
        while below := {pid for pid, parent in parents.items() if parent in mine and pid not in mine}:
            mine |= below
        matches = [every[pid] for pid in mine - {self._owner[0], os.getpid()}]
        self._seen = {process.pid: process.create_time() for process in matches}
        self.ever |= set(self._seen)
        return [process for process in matches if _is_alive(process)]

    def _belongs(self, process: psutil.Process) -> bool:
        known = (process.pid, process.create_time())
        if known == self._owner or self._seen.get(process.pid) == known[1]:
            return True
        with suppress(ProcessLookupError):
            return self._leads_session and os.getsid(process.pid) == self._owner[0]
        return False


def main(front: int) -> None:
    """Watch until the owner has ended; `front` is the process that waits for it, or the owner itself."""
    # An interrupt reaches the whole terminal: a watcher that ended with its owner would leave everything it is there for.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    facts = _Facts()
    owner = facts.owner()
    if owner is None:
        return
    belongings = Belongings(owner)
    _wait_for_end(owner, front, belongings, facts)
    shared = end_processes(belongings)
    _conclude(facts.known, _server_address(belongings.find()))
    _end_last(belongings)
    for name in (shared | _semaphores(belongings.ever)) - _mapped(list(psutil.process_iter())):
        Path(name).unlink(missing_ok=True)


def end_processes(belongings: Belongings) -> set[str]:
    """Let those end that do so by themselves, kill the others; returns the shared memory that they had mapped."""
    shared: set[str] = set()
    by_itself, at_last = time.monotonic() + _SELF_S, time.monotonic() + _SELF_S + _KILL_S
    while (alive := _ordinary(belongings)) and time.monotonic() < at_last:
        shared |= _mapped(alive)  # while they live: afterwards nothing tells whose a file under /dev/shm was
        if time.monotonic() > by_itself:
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        time.sleep(0.1)
    return shared


def _ordinary(belongings: Belongings) -> list[psutil.Process]:
    return [process for process in belongings.find() if not _is_last(process)]


def _is_last(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return any(name in words for name in _LAST)
    return False


def _end_last(belongings: Belongings) -> None:
    alive = belongings.find()
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(alive, timeout=_SERVER_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _wait_for_end(owner: int, front: int, belongings: Belongings, facts: "_Facts") -> None:
    """Returns when the owner has ended. Ends it when its front is gone and it does not follow."""
    try:
        # A process id is given away again; a pidfd stays with the process that is meant, and wakes `select` at its end.
        ended, front_ended = os.pidfd_open(owner), os.pidfd_open(front)
    except ProcessLookupError:
        return
    waits_for = [ended, front_ended]
    kill_at, poll_s = float("inf"), _POLL_S
    while True:
        ready, _, _ = select.select([*waits_for, *facts.source], [], [], poll_s)
        if ended in ready:
            return
        if front_ended in ready:
            waits_for, kill_at = [ended], time.monotonic() + ENDS_WITHIN_S
        if facts.source and facts.source[0] in ready:
            facts.read()
        if time.monotonic() > kill_at:
            os.kill(owner, signal.SIGKILL)
        began_s = time.monotonic()
        # A child whose parent has ended hangs below another process, and is only known for the owner's if it was seen before.
        belongings.find()
        poll_s = max(_POLL_S, _SHARE * (time.monotonic() - began_s))


class _Facts:
    """What the owner says of itself."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.source = [0]
        self._rest = b""

    def owner(self) -> int | None:
        while "owner" not in self.known and self.source:
            self.read()
        return self.known.get("owner")

    def read(self) -> None:
        chunk = os.read(0, 65536)
        if not chunk:
            self.source = []
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self.known |= json.loads(line)


def _conclude(facts: dict[str, Any], server: str | None) -> None:
    """End what the owner's run left open: in the run folder, in Prefect and in MLflow."""
    if not facts.get("run") and not facts.get("flow_run"):
        return
    from flows.processes.aftermath import conclude_run

    log = Path(facts["root"]) / "watcher.log"
    with suppress(OSError):
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
    conclude_run(facts, server)


def _server_address(alive: list[psutil.Process]) -> str | None:
    """Where the owner's private Prefect server listens, if it still does."""
    for process in alive:
        with suppress(psutil.Error):
            words = process.cmdline()
            if _PREFECT in words and "--port" in words:
                return f"http://127.0.0.1:{words[words.index('--port') + 1]}/api"
    return None


def _parent(process: psutil.Process) -> int | None:
    with suppress(psutil.Error):
        return process.ppid()
    return None


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _semaphores(pids: set[int]) -> set[str]:
    """Named semaphores of these processes; loky, which engines import, leaves them when it is killed."""
    matches = [(path, _SEMAPHORE.fullmatch(path.name)) for path in Path(_SHARED_MEMORY).glob("sem.*")]
    return {str(path) for path, name in matches if name and int(name[1]) in pids}


def _mapped(processes: list[psutil.Process]) -> set[str]:
    """Files under /dev/shm that these processes have mapped."""
    names: set[str] = set()
    for process in processes:
        with suppress(OSError):
            lines = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
            names |= {line[line.index(_SHARED_MEMORY) :] for line in lines if _SHARED_MEMORY in line and "(deleted)" not in line}
    return names
