"""Finding the training that another process runs."""

from pathlib import Path

from libra_core.errors import CheckpointError
from libra_core.tracking.run_folder import read_journal


def chosen_run(run: Path | None, root: Path) -> Path:
    """The folder named, or the newest one under `root` that runs.

    Raises:
        CheckpointError: there is no such run, or none that runs.
    """
    if run is not None:
        if read_journal(run).session is None:
            raise CheckpointError(f"no training runs in {run}: it has ended, or is still starting")
        return run
    for journal in sorted(root.glob("*/journal.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        if read_journal(journal.parent).session is not None:
            return journal.parent
    raise CheckpointError(f"no training runs under {root}; name its folder with `run`, or start one")
