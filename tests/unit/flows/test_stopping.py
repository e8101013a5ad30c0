"""`libra stop`: which training is asked, and what it is told when there is none."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.stopping import asked_to_stop
from libra_core.errors import ResourceError
from libra_core.tracking.run_folder import Journal, read_journal, write_journal
from libra_core.tracking.run_owner import owned, owner_of
from libra_core.types.session import SessionRef

ROOT = Path(__file__).parents[3]
RUNS = SessionRef(run_id="a", run_dir="a", ray_address="local", namespace="a")


def run_folder(root: Path, name: str, *, runs: bool, age_s: float = 0.0) -> Path:
    folder = root / name
    folder.mkdir()
    write_journal(folder, Journal(session=RUNS if runs else None))
    written_s = (folder / "journal.json").stat().st_mtime - age_s
    os.utime(folder / "journal.json", (written_s, written_s))
    return folder


def test_the_newest_training_that_runs_is_asked_unless_one_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    older = run_folder(tmp_path, "older", runs=True, age_s=100.0)
    newer = run_folder(tmp_path, "newer", runs=True, age_s=50.0)
    run_folder(tmp_path, "ended", runs=False)
    run_folder(tmp_path, "killed", runs=True)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "journal.json").write_text("{")
    with owned(older), owned(newer):
        assert CliRunner().invoke(app, ["stop", "--root", str(tmp_path), "--json"]).exit_code == 0
        assert json.loads(capfd.readouterr().out.splitlines()[-1]) == {"run_dir": str(newer)}
        assert (asked_to_stop(newer), asked_to_stop(older)) == (True, False)
        assert CliRunner().invoke(app, ["stop", str(older)]).exit_code == 0
    assert asked_to_stop(older)


@pytest.mark.parametrize("arguments", [["--root", "{}"], ["{}/none"], ["{}/ended", "--json"]])
def test_without_a_training_that_runs_it_says_so(tmp_path: Path, arguments: list[str]) -> None:
    run_folder(tmp_path, "ended", runs=False)
    answer = CliRunner().invoke(app, ["stop", *(argument.format(tmp_path) for argument in arguments)])
    assert answer.exit_code == 2
    assert answer.stderr.startswith("libra: ")


def killed_training(run_dir: Path) -> int:
    """A process that owned the folder and was killed; returns its pid."""
    program = f"""
import os, signal
from pathlib import Path
from libra_core.tracking.run_owner import owned
with owned(Path({str(run_dir)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    assert process.wait(60) == -signal.SIGKILL
    return process.pid


def test_a_training_that_was_killed_is_not_asked_but_its_process_is_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "killed", runs=True)
    pid = killed_training(folder)
    answer = CliRunner().invoke(app, ["stop", str(folder)])
    assert answer.exit_code == 2
    assert f"nobody trains {folder}: its process was killed (process {pid} on {socket.gethostname()}" in answer.stderr
    assert f"--resume {folder}" in answer.stderr
    assert not asked_to_stop(folder)


def test_a_training_that_is_just_starting_is_not_asked_and_says_so(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "starting", runs=False)
    with owned(folder):
        answer = CliRunner().invoke(app, ["stop", str(folder)])
    assert answer.exit_code == 2
    assert f"is still starting, or is just ending (process {os.getpid()} on" in answer.stderr


def test_a_run_folder_has_one_owner_and_the_second_hears_who_it_is(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run", runs=True)
    with owned(folder):
        with pytest.raises(ResourceError) as refused, owned(folder):
            pass
        assert f"is being trained by process {os.getpid()} on {socket.gethostname()}" in str(refused.value)
    assert owner_of(folder) is None
    killed_training(folder)
    with owned(folder):
        assert read_journal(folder).session == RUNS


def test_a_look_at_who_owns_a_folder_does_not_keep_its_owner_out(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run", runs=True)
    with owned(folder):
        assert str(owner_of(folder)).startswith(f"process {os.getpid()} on ")
    assert owner_of(folder) is None
    with owned(folder):
        pass
