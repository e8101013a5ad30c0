"""Finding the training that another process runs."""

from pathlib import Path

from libra_core.errors import CheckpointError
from libra_core.tracking.run_folder import read_journal, run_folders
from libra_core.tracking.run_owner import last_owner, owner_of


def chosen_run(run: Path | None, root: Path) -> Path:
    """The folder named, or the newest one under `root` that runs.

    Raises:
        CheckpointError: there is no such run, or none that runs.
    """
    if run is not None:
        _require_running(run)
        return run
    for folder in run_folders(root):
        if _runs(folder):
            return folder
    raise CheckpointError(f"no training runs under {root}; name its folder with `run`, or start one")


def _runs(run_dir: Path) -> bool:
    """A damaged folder does not hide the others."""
    try:
        return read_journal(run_dir).session is not None and owner_of(run_dir) is not None
    except CheckpointError:
        return False


def _require_running(run_dir: Path) -> None:
    is_open, owner = read_journal(run_dir).session is not None, owner_of(run_dir)
    if is_open and owner is not None:
        return
    if owner is not None:
        raise CheckpointError(f"the training in {run_dir} is still starting, or is just ending ({owner}); ask again in a moment")
    if is_open:
        last = last_owner(run_dir)
        raise CheckpointError(
            f"nobody trains {run_dir}: its process was killed{f' ({last})' if last else ''}; "
            f"go on with `libra train CONFIG --resume {run_dir}`"
        )
    raise CheckpointError(f"no training runs in {run_dir}: it has ended")
