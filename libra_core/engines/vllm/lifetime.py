"""No engine process outlives the process that asked for it, not even when that one is killed with SIGKILL.

A death signal (`PR_SET_PDEATHSIG`) would fire when the *thread* that started the engine ends, which an actor's thread pool
may do at any time; so every worker watches the host process instead.
"""

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_POLL_EVERY_S = 0.3
_SHARED_MEMORY = "/dev/shm/"


@dataclass(frozen=True, slots=True)
class HostProcess:
    """Identity of the hosting process; travels to the workers as vLLM's `additional_config`."""

    pid: int
    create_time_s: float

    @classmethod
    def current(cls) -> "HostProcess":
        return cls(os.getpid(), psutil.Process().create_time())

    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.create_time_s and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def compute_hash(self) -> str:
        """vLLM names its compile cache by this; the host must not matter."""
        return "libra"


def die_with(host: HostProcess, *, kill_parent: bool) -> None:
    """Start the watch in this worker; `kill_parent` also ends the engine core that a separate worker hangs below."""

    def watch() -> None:
        while host.is_alive():
            time.sleep(_POLL_EVERY_S)
        unlink_shared_memory(os.getpid())
        if kill_parent and os.getppid() > 1:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="libra-host-watch", daemon=True).start()  # failure: it raises nothing


def unlink_shared_memory(pid: int) -> None:
    """Remove the names of vLLM's tensor-parallel segments that a process has mapped; the mappings stay valid.

    vLLM leaves them in /dev/shm when its workers are killed.
    """
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return
    names = {line[line.index(_SHARED_MEMORY) :] for line in lines if f"{_SHARED_MEMORY}vllm_dist_" in line}
    for name in names:
        Path(name).unlink(missing_ok=True)


def end_processes(processes: list[psutil.Process], *, grace_s: float) -> None:
    """Wait for processes that were told to stop, then kill those that did not."""
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        if process.is_running():
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)
