import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from libra_core.errors import CheckpointError, ResourceError
from libra_core.tracking import jsonl
from libra_core.tracking.jsonl import read_metrics
from libra_core.tracking.recorder import NullTracker, Recorder
from libra_core.tracking.run_folder import Journal, read_journal, write_journal
from libra_core.tracking.summary import RunPlace, summarise
from support.reports import iteration_report, reward_report


class RememberingTracker(NullTracker):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.metrics: list[tuple[int, Mapping[str, float]]] = []
        self.tables: list[str] = []
        self.status: list[str] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.metrics.append((step, metrics))

    def log_table(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        self.tables.append(name)

    def finish(self, status: str) -> None:
        self.status.append(status)


def _recorder(run_dir: Path, first_step: int = 0) -> tuple[Recorder, RememberingTracker]:
    if not (run_dir / "journal.json").exists():
        write_journal(run_dir, Journal())
    tracker = RememberingTracker()
    return Recorder(run_dir, tracker, first_step=first_step), tracker


def test_iteration_goes_to_file_tracker_and_journal(tmp_path: Path) -> None:
    recorder, tracker = _recorder(tmp_path)
    recorder.record(iteration_report(0))
    assert [row["step"] for row in read_metrics(tmp_path)] == [0]
    assert tracker.metrics[0][0] == 0
    assert read_journal(tmp_path).next_step == 1
    assert read_journal(tmp_path).policy_version == 1


def test_only_the_newest_iteration_counts_as_recorded(tmp_path: Path) -> None:
    recorder, _ = _recorder(tmp_path)
    recorder.record(iteration_report(0))
    recorder.record(iteration_report(1))
    assert recorder.recorded(1) == iteration_report(1)
    assert recorder.recorded(2) is None


def test_resumed_run_forgets_iterations_it_does_again(tmp_path: Path) -> None:
    recorder, _ = _recorder(tmp_path)
    for step in range(4):
        recorder.record(iteration_report(step))
    resumed, _ = _recorder(tmp_path, first_step=2)
    resumed.record(iteration_report(2))
    assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2]


def test_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    recorder, _ = _recorder(tmp_path)
    recorder.record(iteration_report(0))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "rew')
    assert [row["step"] for row in read_metrics(tmp_path)] == [0]


def test_finish_happens_once(tmp_path: Path) -> None:
    recorder, tracker = _recorder(tmp_path)
    recorder.finish("FINISHED")
    recorder.finish("FAILED")
    assert tracker.status == ["FINISHED"]


def test_summary_compares_the_first_and_last_iterations(tmp_path: Path) -> None:
    recorder, tracker = _recorder(tmp_path)
    for step in range(10):
        recorder.record(iteration_report(step, reward=reward_report(step, mean=step / 10)))
    summary = recorder.summary({"reward_mean": 0.5}, RunPlace(run_dir=str(tmp_path)))
    assert summary.steps == 10
    assert summary.reward_first == pytest.approx(0.1)
    assert summary.reward_last == pytest.approx(0.7)
    assert summary.tokens_per_s == pytest.approx(200.0)
    assert summary.overlap_fraction == pytest.approx(0.75)
    assert tracker.metrics[-1][1]["summary/reward_last"] == summary.reward_last
    assert tracker.metrics[-1][1]["heldout/reward_mean"] == 0.5


def test_json_line_has_what_is_promised(tmp_path: Path) -> None:
    recorder, _ = _recorder(tmp_path)
    recorder.record(iteration_report(0))
    keys = recorder.summary({}, RunPlace(run_dir=str(tmp_path))).as_json().keys()
    promised = "steps reward_first reward_last tokens_per_s t_rollout_s t_train_s t_iter_s overlap_fraction run_dir"
    assert set(promised.split()) <= keys


def test_run_without_iterations_has_no_summary(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without iterations"):
        summarise([], RunPlace(run_dir=str(tmp_path)), {})


def test_the_tracked_run_is_ended_also_where_the_disk_refuses(tmp_path: Path) -> None:
    recorder, tracker = _recorder(tmp_path)
    recorder.record(iteration_report(0))
    (tmp_path / "trace.json").unlink()
    (tmp_path / "trace.json").mkdir()
    recorder.finish("FAILED")
    assert tracker.status == ["FAILED"]


def test_an_iteration_that_cannot_be_written_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    recorder, _ = _recorder(tmp_path)
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(ResourceError, match=r"cannot use .*metrics\.jsonl: Is a directory; make room .* and resume the run"):
        recorder.record(iteration_report(0))


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, _ = _recorder(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(jsonl, "append_metrics", full)
    with pytest.raises(ResourceError, match=f"cannot use {tmp_path}: No space left on device; make room"):
        recorder.record(iteration_report(0))


@pytest.mark.parametrize("name", ["metrics.jsonl", "lengths.jsonl", "decisions.jsonl", "trace.json"])
@pytest.mark.parametrize(
    "damage", [b"\xff\xfe\n", b"5\n[]\nnull\n{}\n", b'{"step": "x"}\n', b'{"step": 0, "kind": "decision"}\n', b'{"st']
)
def test_damaged_files_of_a_run_folder_do_not_keep_it_from_going_on(tmp_path: Path, name: str, damage: bytes) -> None:
    recorder, _ = _recorder(tmp_path)
    recorder.record(iteration_report(0))
    with (tmp_path / name).open("ab") as file:
        file.write(damage)
    resumed, tracker = _recorder(tmp_path, first_step=1)
    resumed.record(iteration_report(1))
    assert resumed.summary({}, RunPlace(run_dir=str(tmp_path))).steps == 2
    resumed.finish("FINISHED")
    assert tracker.status == ["FINISHED"]


def test_metrics_that_are_gone_are_a_sentence(tmp_path: Path) -> None:
    recorder, _ = _recorder(tmp_path)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl holds no iteration"):
        recorder.summary({}, RunPlace(run_dir=str(tmp_path)))
