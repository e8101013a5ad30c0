import errno
import os
from pathlib import Path

import pytest

from libra_core.config import LibraConfig, load_config
from libra_core.errors import CheckpointError, ResourceError, on_the_disk
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


DAMAGED = ["", "{", "[]", "null", '"text"', "7", '{"unknown": 1}', '{"next_step": "4"}', '{"next_step": null}', '{"session": []}']
DAMAGED += ['{"session": {"run_id": "a"}}', '{"mlflow_run_id": 7}', '{"session": "abc"}', '{"next_step": -1}', '{"wall_s": NaN}']


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_journal_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.json").write_text(text)
    with pytest.raises(CheckpointError, match="damaged") as raised:
        read_journal(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_journal_of_other_bytes_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "journal.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="damaged"):
        read_journal(tmp_path)


@pytest.mark.parametrize("place", ["file", "file/below", "folder/file"])
def test_a_root_that_is_no_folder_is_one_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    with pytest.raises(ResourceError, match=r"cannot use .*file.*; choose another run.root"):
        make_run_folder(_config(tmp_path / place))


def test_a_full_disk_leaves_no_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ResourceError, match="No space left on device"):
        make_run_folder(_config(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_the_disk_refuses_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run_folder(_config(tmp_path))

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ResourceError, match=r"cannot use .*journal\.json: No space left on device; free some space"):
        update_journal(run_dir, session=None)


def test_sockets_and_processes_are_not_taken_for_the_disk() -> None:
    with pytest.raises(ConnectionRefusedError), on_the_disk("/runs"):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")


def test_a_checkpoint_can_be_named_instead_of_its_run(tmp_path: Path) -> None:
    run_dir = make_run_folder(_config(tmp_path))
    named = _config(tmp_path, resume=str(run_dir / "checkpoints" / "step-000004"))
    assert (named.run.resumed_folder, named.run.resumed_checkpoint) == (run_dir, run_dir / "checkpoints" / "step-000004")
    newest = _config(tmp_path, resume=str(run_dir))
    assert (newest.run.resumed_folder, newest.run.resumed_checkpoint) == (run_dir, None)
    assert make_run_folder(named) == run_dir


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
    (tmp_path / ".flow-runs" / "flow-3").write_bytes(b"\xff")
    assert find_run(tmp_path, "flow-3") is None
