import errno
import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from libra_core.tracking import buffered, mlflow_tracker
from libra_core.tracking.buffered import PENDING_FILE, BufferedTracker, Record


@dataclass
class FlakyDestination:
    """Refuses the first `failures` records."""

    failures: int = 0
    ending_fails: bool = False
    delivered: list[Record] = field(default_factory=list)
    status: str | None = None

    def deliver(self, record: Record) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise ConnectionError("mlflow is away")
        self.delivered.append(record)

    def end(self, status: str) -> None:
        if self.ending_fails:
            raise ConnectionError("mlflow is away")
        self.status = status


def _tracker(destination: FlakyDestination, run_dir: Path) -> BufferedTracker:
    return BufferedTracker(destination, run_dir, retry_s=0.01, drain_s=5.0)


def test_records_arrive_in_order(tmp_path: Path) -> None:
    destination = FlakyDestination()
    tracker = _tracker(destination, tmp_path)
    for step in range(20):
        tracker.log_metrics({"reward/mean": 0.1}, step)
    tracker.finish("FINISHED")
    assert [record.step for record in destination.delivered] == list(range(20))
    assert destination.status == "FINISHED"


def test_outage_is_caught_up(tmp_path: Path) -> None:
    destination = FlakyDestination(failures=3)
    tracker = _tracker(destination, tmp_path)
    for step in range(5):
        tracker.log_metrics({"reward/mean": 0.1}, step)
    while len(destination.delivered) < 5:
        pass
    tracker.finish("FINISHED")
    assert [record.step for record in destination.delivered] == [0, 1, 2, 3, 4]
    assert not (tmp_path / PENDING_FILE).exists()


def test_what_never_arrives_lies_in_the_run_folder_and_is_sent_on_resume(tmp_path: Path) -> None:
    tracker = _tracker(FlakyDestination(failures=10**9), tmp_path)
    tracker.log_metrics({"reward/mean": 0.1}, 0)
    tracker.log_table("trajectories/step-00000", [{"text": "a"}, {"text": "b"}])
    tracker.finish("FAILED")
    assert [item["kind"] for item in json.loads((tmp_path / PENDING_FILE).read_text())] == ["metrics", "table"]

    resumed = FlakyDestination()
    _tracker(resumed, tmp_path).finish("FINISHED")
    assert [record.kind for record in resumed.delivered] == ["metrics", "table"]
    assert resumed.delivered[1].content == {"text": ["a", "b"]}


def test_failing_end_does_not_raise(tmp_path: Path) -> None:
    _tracker(FlakyDestination(ending_fails=True), tmp_path).finish("FINISHED")


@pytest.mark.parametrize(
    "damage", [b"[{", b"\xff", b"{}", b'[{"kind": "metrics"}]', b'[{"kind": "spoons", "content": {}, "timestamp_ms": 1}]']
)
def test_records_that_cannot_be_read_are_set_aside_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    (tmp_path / PENDING_FILE).write_bytes(damage)
    destination = FlakyDestination()
    tracker = _tracker(destination, tmp_path)
    tracker.log_metrics({"reward/mean": 0.1}, 3)
    tracker.finish("FINISHED")
    assert [record.step for record in destination.delivered] == [3]
    assert (tmp_path / f"{PENDING_FILE}.damaged").read_bytes() == damage
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"{tmp_path / PENDING_FILE} is damaged" in said
    assert f"kept as {PENDING_FILE}.damaged" in said


def test_a_run_is_ended_although_its_store_is_busy_for_a_moment(tmp_path: Path) -> None:
    destination = FlakyDestination()
    busy = [ConnectionError("database is locked")]
    end = destination.end

    def end_later(status: str) -> None:
        if busy:
            raise busy.pop()
        end(status)

    destination.end = end_later  # type: ignore[method-assign]
    _tracker(destination, tmp_path).finish("FINISHED")
    assert destination.status == "FINISHED"


def test_a_full_disk_is_said_once_and_in_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither MLflow's database nor the run folder takes anything; what is lost is said to be lost."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full(FlakyDestination):
        def deliver(self, record: Record) -> None:
            raise RuntimeError(FULL)

        def end(self, status: str) -> None:
            raise RuntimeError(FULL)

    monkeypatch.setattr(buffered, "write_atomically", full)
    tracker = _tracker(Full(), tmp_path)
    for step in range(5):
        tracker.log_metrics({"reward/mean": 0.1}, step)
    tracker.finish("FAILED")
    said = [record.getMessage() for record in caplog.records]
    path = tmp_path / PENDING_FILE
    assert sorted(said) == sorted(
        [
            f"tracking fails ((sqlite3.OperationalError) database or disk is full); records wait in {path}",
            f"cannot write {path}: No space left on device",
            "5 records did not reach the tracker ((sqlite3.OperationalError) database or disk is full); "
            f"{path} could not take them either (No space left on device), and they are lost",
            "could not mark the tracked run as FAILED: (sqlite3.OperationalError) database or disk is full",
        ]
    )


def test_mlflow_does_not_log_what_it_raises() -> None:
    assert mlflow_tracker.MlflowRun
    assert logging.getLogger("mlflow.store.db.utils").getEffectiveLevel() > logging.ERROR


FULL = """(raised as a result of Query-invoked autoflush; consider using a session.no_autoflush block if this flush is premature)
(sqlite3.OperationalError) database or disk is full
[SQL: UPDATE runs SET status=?, end_time=? WHERE runs.run_uuid = ?]
[parameters: ('FAILED', 1796102015436)]
(Background on this error at: https://sqlalche.me/e/21/e3q8)"""
