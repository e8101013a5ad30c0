"""Running `libra` as a terminal, a scheduler or a runner does, ending it in a phase, and looking for what it left."""

import fcntl
import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
MARK = "LIBRA_TEST_MARK"
"""Environment variable that all processes of one test inherit."""
_TRACES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment(home: Path, mark: str, **more: str) -> dict[str, str]:
    """Without the Prefect and MLflow of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [kept.get("PYTHONPATH")])])
    mine = {"OMP_NUM_THREADS": "1", "PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    return {**kept, **mine, "PYTHONPATH": path, "COLUMNS": "200", MARK: mark, **more}


@dataclass(kw_only=True)
class Ended:
    """How a command ended."""

    status: int
    took_s: float
    said: str

    @property
    def sentences(self) -> list[str]:
        return [line for line in self.said.splitlines() if line.startswith("libra: ")]


class Command:
    """A command in a terminal of its own (`terminal`), or in a process group of its own with a pipe for its output."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, terminal: bool) -> None:
        self.mark = env[MARK]
        self._text = b""
        self._began_s = 0.0
        if terminal:
            self._source, inner = pty.openpty()
            self.process = subprocess.Popen(
                command, env=dict(env), cwd=ROOT, stdin=inner, stdout=inner, stderr=inner, start_new_session=True, preexec_fn=_own
            )
            os.close(inner)
        else:
            self._source, inner = os.pipe()
            self.process = subprocess.Popen(
                command, env=dict(env), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=inner, stderr=inner, start_new_session=True
            )
            os.close(inner)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def says(self, words: str, within_s: float = 120.0) -> None:
        """Wait until its output holds these words."""
        wait_until(
            lambda: words in self.text() or self.process.poll() is not None, within_s, f"`{words}` in {self.text()[-2000:]}"
        )
        assert words in self.text(), self.text()[-3000:]

    def text(self) -> str:
        return _TRACES.sub("", self._text.decode(errors="replace")).replace("\r", "\n")

    def press_ctrl_c(self) -> None:
        self._began_s = time.monotonic()
        os.write(self._source, b"\x03")

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        self._began_s = time.monotonic()
        (os.killpg if group else os.kill)(self.process.pid, number)

    def kill(self, pid: int) -> None:
        self._began_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)

    def ended(self, within_s: float = 120.0) -> Ended:
        """Wait for its end; the seconds count from the last signal."""
        status = self.process.wait(within_s)
        took_s = time.monotonic() - self._began_s
        self._reader.join(5.0)
        return Ended(status=status, took_s=took_s, said=self.text())

    def gone_s(self, within_s: float = 120.0) -> float:
        """Seconds from the last signal until no process of it is left."""
        wait_until(lambda: not marked(self.mark), within_s, f"the end of {names(marked(self.mark))}")
        return time.monotonic() - self._began_s

    def end(self) -> None:
        """For tests that failed: nothing of them goes on."""
        for process in marked(self.mark):
            process.kill()
        self.process.wait(10.0)

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._source, 65536)
            except OSError:
                return
            if not chunk:
                return
            self._text += chunk


def _own() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def new_mark() -> str:
    return uuid.uuid4().hex


def marked(mark: str) -> list[psutil.Process]:
    """Living processes that were started, over whatever generations, with this mark."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def names(processes: Sequence[psutil.Process]) -> list[str]:
    found: list[str] = []
    for process in processes:
        try:
            found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except psutil.Error:
            continue
    return found


def the_work(command: Command) -> int:
    """The process that works behind the one that the terminal knows."""
    (work,) = (child for child in psutil.Process(command.process.pid).children() if "libra-watcher" not in child.cmdline())
    return work.pid


def wait_until(check: Callable[[], Any], within_s: float, what: str) -> Any:
    end_s = time.monotonic() + within_s
    while not (found := check()):
        assert time.monotonic() < end_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.1)
    return found


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """Read a SQLite file of Prefect or MLflow as it lies there."""
    if not database.exists():
        return []
    connection = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def prefect_states(home: Path) -> set[str]:
    """Names of the states of all flow runs in a private server's database."""
    return {name for (name,) in rows(home / "prefect.db", "SELECT state_name FROM flow_run")}


def mlflow_statuses(root: Path) -> list[str]:
    return [status for (status,) in rows(root / "mlflow.db", "SELECT status FROM runs")]


def stand_in(phase: str, *arguments: str) -> list[str]:
    """`libra ARGUMENTS` with a session that stays in this phase; see `support.ends_stand_in`."""
    return [sys.executable, "-m", "support.ends_stand_in", phase, *arguments]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
