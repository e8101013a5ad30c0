"""`libra stop`: which training is asked, and what it is told when there is none."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.stopping import asked_to_stop
from libra_core.tracking.run_folder import Journal, write_journal
from libra_core.types.session import SessionRef

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
