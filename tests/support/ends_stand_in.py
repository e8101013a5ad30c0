"""`libra` with a session that leaves what a real one can leave, and stays in the phase named first on the command line.

Its session starts a process that nobody is above, shared memory, a folder as Ray's, and a listening port.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from libra_core.config import LibraConfig
from libra_core.types.session import SessionRef
from support.session import FakeBackend, FakeConnection

_ORPHAN = """
import os, signal, socket, time
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0: time.sleep(600)
"""
PHASES = ("opening", "iteration", "save", "held-out")


class StaysIn(FakeBackend):
    """Opens like a real session, then answers at once until the phase comes."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase = phase

    def open_session(self, config: LibraConfig, run_dir: Path, report: Callable[[str, float], None]) -> SessionRef:
        from libra_core.runtime.base.remains import shared_memory, temp_folder
        from libra_core.tracking.run_folder import update_journal

        namespace = f"libra-{run_dir.name}-{str(time.time_ns())[-6:]}"
        session = SessionRef(run_id=namespace, run_dir=str(run_dir), ray_address="local", namespace=namespace)
        update_journal(run_dir, session=session)
        for folder in (shared_memory(namespace), temp_folder(namespace)):
            folder.mkdir(parents=True)
        subprocess.run([sys.executable, "-c", _ORPHAN], check=True)
        self.stay("opening")
        return session

    def connect(self, session: SessionRef) -> FakeConnection:
        return StayingConnection(backend=self)

    def close_session(self, session: SessionRef) -> None:
        from libra_core.runtime.base.remains import remove_remains

        remove_remains(session)

    def stay(self, phase: str) -> None:
        """The test waits for this line."""
        if phase == self.phase:
            print(f"in {phase}", file=sys.stderr, flush=True)
            time.sleep(600)


class StayingConnection(FakeConnection):
    """Its calls block where a test wants the run to be."""

    backend: StaysIn

    @property
    def rollout(self) -> "StayingConnection":
        return self

    reward = trainer = controller = rollout

    def take_batch(self, step: int) -> Any:
        self.backend.stay("iteration" if step == 1 else "")
        return super().take_batch(step)

    def save(self, step: int) -> str:
        self.backend.stay("save")
        return super().save(step)

    def evaluate_heldout(self) -> dict[str, float]:
        self.backend.stay("held-out")
        return super().evaluate_heldout()


def main() -> None:
    phase = sys.argv.pop(1)
    from flows.cli import main as libra
    from tasks.connection import using

    with using(StaysIn(phase)):
        libra()


if __name__ == "__main__":
    main()
