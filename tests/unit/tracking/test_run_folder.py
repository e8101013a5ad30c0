import json
from pathlib import Path

import pytest

from libra_core.config import LibraConfig, load_config
from libra_core.errors import CheckpointError
from libra_core.tracking.run_folder import (
    Journal,
    discard_run_folder,
    find_run,
    make_run_folder,
    read_journal,
    remember_flow_run,
    update_journal,
    write_journal,
)
from libra_core.types.session import SessionRef


def _config(root: Path, **run: object) -> LibraConfig:
    return LibraConfig.model_validate({"seed": 3, "run": {"name": "demo", "root": str(root), **run}})


def test_folder_holds_the_resolved_config(tmp_path: Path) -> None:
    config = _config(tmp_path)
    run_dir = make_run_folder(config)
    assert run_dir.name.startswith("demo-")
    assert run_dir.name.endswith("-s3")
    assert load_config(run_dir / "config.yaml") == config


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path) -> None:
    assert len({make_run_folder(_config(tmp_path)) for _ in range(3)}) == 3


def test_journal_reads_back_with_its_session(tmp_path: Path) -> None:
    session = SessionRef(run_id="r", run_dir=str(tmp_path), ray_address="local", namespace="n")
    write_journal(tmp_path, Journal(next_step=4, mlflow_run_id="abc", session=session))
    assert update_journal(tmp_path, policy_version=4) == read_journal(tmp_path)
    assert read_journal(tmp_path).session == session


def test_crash_while_writing_leaves_the_old_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_journal(tmp_path, Journal(next_step=4))

    def crash(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_journal(tmp_path, Journal(next_step=5))
    assert read_journal(tmp_path).next_step == 4


@pytest.mark.parametrize("text", ["{", json.dumps({"unknown": 1}), "[]"])
def test_damaged_journal_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.json").write_text(text)
    with pytest.raises(CheckpointError, match="damaged"):
        read_journal(tmp_path)


def test_resume_of_a_folder_without_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a run folder"):
        make_run_folder(_config(tmp_path, resume=str(tmp_path)))


def test_resume_keeps_the_first_config(tmp_path: Path) -> None:
    run_dir = make_run_folder(_config(tmp_path))
    before = (run_dir / "config.yaml").read_text()
    assert make_run_folder(_config(tmp_path, resume=str(run_dir))) == run_dir
    assert (run_dir / "config.yaml").read_text() == before


def test_only_a_run_without_iterations_is_discarded(tmp_path: Path) -> None:
    begun, empty = make_run_folder(_config(tmp_path)), make_run_folder(_config(tmp_path))
    update_journal(begun, next_step=1)
    discard_run_folder(begun)
    discard_run_folder(empty)
    assert begun.exists()
    assert not empty.exists()


def test_flow_run_leads_to_its_folder(tmp_path: Path) -> None:
    run_dir = make_run_folder(_config(tmp_path))
    remember_flow_run(tmp_path, "flow-1", run_dir)
    assert find_run(tmp_path, "flow-1") == run_dir
    assert find_run(tmp_path, "flow-2") is None
