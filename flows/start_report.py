"""Reports of a start: to whoever watches this process, and to the log of the flow run, which is all that a served run has."""

import time
from pathlib import Path

from prefect import get_run_logger

from flows.views.board import current_board
from flows.views.start_pace import StartPace, keep_times, read_times


class StartReport:
    """Called with what is being started and the share that is done; from the flow's thread and from start-up threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._board = current_board()
        self._log = get_run_logger()
        self._pace = StartPace(read_times(root))
        self._began_s = time.monotonic()

    def __call__(self, name: str, share: float) -> None:
        self._board.phase(name, share)
        progress = self._pace.hear(name, share)
        if progress.is_news:
            self._log.info("%s", progress.line)

    def ready(self) -> None:
        """Everything is started; the next start under this run root will know how long it took."""
        self._pace.hear("ready", 1.0)
        keep_times(self._root, self._pace.times)
        self._log.info("the first iteration begins, %.0f s after the start", time.monotonic() - self._began_s)
