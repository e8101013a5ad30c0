"""Process 1 of a sandbox: starts the command within its limits, watches what limits of the kernel do not cover, reports.

A script of the standard library alone: it runs inside the sandbox, where Libra is not installed. File descriptor 0 carries the
order, one line of JSON, and closing it ends the sandbox; 1 is the command's output; 2 carries the report, one line of JSON.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, NoReturn

CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 4, 38, 36
_INSIDE_ID = 1000
_FIRST_POLL_S, _LATER_POLL_S, _DISK_POLL_S = 0.02, 0.1, 0.5
_ADDRESS_SPACE_FACTOR = 2
"""A process may reserve this many times the memory that all of them may use: interpreters reserve more than they touch."""
_MAX_FILES = 50_000
_MAX_PATH = 4000
"""Bytes; below what the kernel takes, so that nothing can be hidden where it cannot be measured."""

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def read_order() -> dict[str, Any]:
    """The first line of descriptor 0, read without taking more than it."""
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            raise SystemExit(0)
        parts.append(part)
    order: dict[str, Any] = json.loads(b"".join(parts))
    return order


def leave_root(uid: int) -> None:
    """Become a user of no rights; process limits do not hold for root."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def enter_user_namespace() -> None:
    """One of its own, so that its processes are counted apart from other sandboxes of the same user."""
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(CLONE_NEWUSER), "user namespace")
    map_identity(uid, gid)


def map_identity(uid: int, gid: int) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_INSIDE_ID} {uid} 1"), ("gid_map", f"{_INSIDE_ID} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def forbid_user_namespaces() -> None:
    """A namespace inside the sandbox would only offer more of the kernel to attack."""
    with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w", encoding="utf-8") as file:
        file.write("0")


class Usage:
    """What all processes of the sandbox use together."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        """Whether /proc shows this sandbox alone."""
        self._ticks = os.sysconf("SC_CLK_TCK")
        self.peak_memory_bytes = 0

    def pids(self) -> list[int]:
        """Every process but this one."""
        everyone = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
        return everyone if self._whole else self._descendants(everyone)

    def measure(self) -> tuple[float, int]:
        """CPU seconds so far and bytes of memory now; shared pages of forked processes count for each of them."""
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = reaped.ru_utime + reaped.ru_stime
        memory = 0
        for pid in self.pids():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = _stat(pid)
                cpu_s += sum(int(field) for field in fields[11:15]) / self._ticks
                memory += _resident_bytes(pid)
        self.peak_memory_bytes = max(self.peak_memory_bytes, memory)
        return cpu_s, memory

    def _descendants(self, everyone: list[int]) -> list[int]:
        parents: dict[int, int] = {}
        for pid in everyone:
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents[pid] = int(_stat(pid)[1])
        family = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        return sorted(family - {os.getpid()})


def _stat(pid: int) -> list[str]:
    """Fields after the command's name, which may hold anything."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _resident_bytes(pid: int) -> int:
    total = 0
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def disk_bytes(roots: list[str], limit: int) -> int:
    """Bytes below `roots`; past `limit`, too many files or a path too long it answers more than the limit."""
    total = files = 0
    stack = list(roots)
    while stack:
        folder = stack.pop()
        if len(os.fsencode(folder)) > _MAX_PATH:
            return limit + 1
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                files += 1
                if files > _MAX_FILES or total > limit:
                    return limit + 1
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


class Supervision:
    """One command from start to report. Waits for: the command's end, a limit, the order's descriptor closing."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._limits: dict[str, Any] = order["limits"]
        self._usage = Usage(whole=os.getpid() == 1)
        self._started_s = time.monotonic()
        self._disk_checked_s = self._started_s
        self._status: int | None = None
        self._main = 0

    def run(self) -> NoReturn:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wake, wakened = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._main = self._start()
        os.close(1)  # the host sees the end of the output when the last writer is gone
        reason = self._watch(wake)
        self._kill_everyone()
        self._report(reason)

    def _start(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            self._become_command()
        except BaseException as error:  # the child of a fork must not unwind into the parent's code
            os.write(1, f"cannot start: {error}\n".encode())
        os._exit(127)

    def _become_command(self) -> None:
        limits = self._limits
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _supply_input(self._order.get("input", ""))
        os.dup2(1, 2)
        with contextlib.suppress(OSError):
            os.nice(10)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write("1000")
        address_space = limits["memory_bytes"] * _ADDRESS_SPACE_FACTOR
        cpu_s = int(limits["cpu_s"]) + 1
        for name, value in (
            (resource.RLIMIT_AS, address_space),
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_FSIZE, limits["file_bytes"]),
            (resource.RLIMIT_NPROC, limits["processes"]),
            (resource.RLIMIT_NOFILE, 512),
            (resource.RLIMIT_CORE, 0),
        ):
            if name == resource.RLIMIT_NPROC and not self._order["counts_processes"]:
                continue  # without a user namespace it would count the host user's other processes
            resource.setrlimit(name, (value, value))
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.umask(0o022)
        os.chdir(self._order["folder"])
        os.execve(self._order["argv"][0], self._order["argv"], self._order["environment"])

    def _watch(self, wake: int) -> str:
        poll = select.poll()
        poll.register(0, select.POLLIN | select.POLLHUP)
        poll.register(wake, select.POLLIN)
        pause_s = _FIRST_POLL_S
        while True:
            ready = dict(poll.poll(pause_s * 1000))
            if wake in ready:
                os.read(wake, 4096)
            self._reap()
            if self._status is not None:
                return "exited"
            if 0 in ready and not os.read(0, 4096):
                return "cancelled"
            if reason := self._over_limit():
                return reason
            pause_s = min(_LATER_POLL_S, pause_s * 1.5)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._main:
                    self._status = status

    def _over_limit(self) -> str:
        limits, now_s = self._limits, time.monotonic()
        if now_s - self._started_s > limits["wall_s"]:
            return "timeout"
        cpu_s, memory = self._usage.measure()
        if cpu_s > limits["cpu_s"]:
            return "cpu"
        if memory > limits["memory_bytes"]:
            return "memory"
        if not self._order["counts_processes"] and len(self._usage.pids()) > limits["processes"]:
            return "processes"
        if now_s - self._disk_checked_s > _DISK_POLL_S:
            self._disk_checked_s = now_s
            if disk_bytes(self._order["disk_roots"], limits["disk_bytes"]) > limits["disk_bytes"]:
                return "disk"
        return ""

    def _kill_everyone(self) -> None:
        """Until nobody is left: a process may fork while the others are being killed."""
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all at once, before one of them can fork again
        deadline_s = time.monotonic() + 5.0
        while (left := self._usage.pids()) and time.monotonic() < deadline_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.002)
        self._reap()

    def _report(self, reason: str) -> NoReturn:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        facts = {
            "reason": reason,
            "exit_code": os.waitstatus_to_exitcode(self._status) if self._status is not None else None,
            "cpu_s": used.ru_utime + used.ru_stime,
            "peak_memory_bytes": self._usage.peak_memory_bytes,
        }
        os.write(2, json.dumps(facts).encode() + b"\n")
        os._exit(0)


def _supply_input(text: str) -> None:
    source = os.memfd_create("input")
    with open(source, "wb", closefd=False) as file:
        file.write(text.encode())
    os.lseek(source, 0, os.SEEK_SET)
    os.dup2(source, 0)


def supervise(order: dict[str, Any]) -> NoReturn:
    """Give up every right, then run the order. Never returns.

    Only within a namespace of processes is the parent's end a reason to die: `PR_SET_PDEATHSIG` watches the parent's thread.
    """
    if order["leave_root_for"] is not None:
        leave_root(order["leave_root_for"])
        enter_user_namespace()
    if os.getpid() == 1:
        forbid_user_namespaces()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    Supervision(order).run()


if __name__ == "__main__":
    try:
        supervise(read_order())
    except Exception as error:  # the host reads this sentence as "sandbox lost"
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        sys.exit(1)
