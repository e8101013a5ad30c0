"""Starting the watcher of a process (`flows.processes.watcher`), and telling it what that process has open."""

import atexit
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_MAIN = "import sys; sys.path[:] = sys.argv[1].split(':'); from flows.processes.watcher import main; main(int(sys.argv[2]))"
_GRACE_S = 30.0
"""How long a finished process waits for its watcher, which at most ends what is left."""

_current: list["Watcher"] = []


class Watcher:
    """A process beside this one that outlives it. `tell` may be called from any thread."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: int) -> None:
        self._process, self._pipe = process, pipe

    def begin(self, owner: int) -> None:
        """Watch this process. The pipe then belongs to it alone."""
        self.tell(owner=owner)
        os.close(self._pipe)

    def tell(self, **facts: Any) -> None:
        """Replace facts by these. A watcher that is gone is nobody's reason to end."""
        with suppress(OSError):
            os.write(self._pipe, (json.dumps(facts) + "\n").encode())

    def finish(self) -> None:
        """Wait until it has seen the end of what it watches and is gone."""
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def start_watcher() -> Watcher:
    """Start one in a session of its own; whoever is to be watched then calls, or is named to, `begin`."""
    reads, writes = os.pipe()
    path = ":".join(str(Path(entry).resolve()) for entry in sys.path)
    command = [sys.executable, "-c", _MAIN, path, str(os.getpid()), "libra-watcher"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=reads, stdout=quiet, stderr=quiet, start_new_session=True, restore_signals=True)
    os.close(reads)
    watcher = Watcher(process, writes)
    _current.append(watcher)
    return watcher


def tell_watcher(**facts: Any) -> None:
    """Tell whoever watches this process; without a watcher nobody listens."""
    if _current:
        _current[-1].tell(**facts)


def watch_this_process() -> None:
    """For a process that no front waits for, such as a served run: a session of its own and a watcher. Idempotent."""
    if _current:
        return
    with suppress(PermissionError):  # it leads a process group already
        os.setsid()
    watcher = start_watcher()
    watcher.tell(owner=os.getpid())
    atexit.register(watcher.tell, run=None, flow_run=None)
