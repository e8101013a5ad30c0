"""`libra stop`: asks a training in another process to end after the iteration that it is in, with a checkpoint to go on from.

The request is a file in the run folder, so a scheduler's hook can make it on whatever host sees that folder.
"""

from pathlib import Path

import typer

from flows.command_line.output import json_output
from flows.running import chosen_run
from libra_core.errors import on_the_disk

REQUEST = "stop.request"
STOPPED = 75
"""Exit status of a training that was stopped: `EX_TEMPFAIL` of sysexits.h, for schedulers that requeue."""


def ask_to_stop(run_dir: Path) -> None:
    with on_the_disk(run_dir):
        (run_dir / REQUEST).touch()


def asked_to_stop(run_dir: Path) -> bool:
    return (run_dir / REQUEST).exists()


def forget_stop(run_dir: Path) -> None:
    """A run that goes on was not asked."""
    (run_dir / REQUEST).unlink(missing_ok=True)


def run_stop(run: Path | None, root: Path, *, as_json: bool) -> None:
    """Raises `CheckpointError` when there is no such run, or none that runs."""
    with json_output(as_json) as emit:
        run_dir = chosen_run(run, root)
        ask_to_stop(run_dir)
        if not as_json:
            typer.echo(f"{run_dir} stops after the iteration that it is in; go on with `libra train CONFIG --resume {run_dir}`")
        emit({"run_dir": str(run_dir)})
