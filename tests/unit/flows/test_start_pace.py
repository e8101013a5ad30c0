import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows import start_report
from flows.start_report import StartReport
from flows.views.board import SilentBoard, put_up
from flows.views.start_pace import StartPace, keep_times, read_times


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_phase_that_reports_shares_says_how_long_it_will_take() -> None:
    clock = Clock()
    pace = StartPace(clock=clock)
    pace.hear("teaching", 0.0)
    lines = []
    for step in range(1, 51):
        clock.now_s += 1.0
        progress = pace.hear(f"teaching, loss {1 / step:.2f}", step / 100)
        lines += [progress.line] if progress.is_news else []
    assert lines[1] == "teaching, loss 0.05: 20%, about 80 s left"
    assert len(lines) == 5


def test_a_phase_that_reports_none_says_how_long_it_took_last_time() -> None:
    pace = StartPace({"starting the engines": 38.4})
    assert pace.hear("starting the engines", 0.5).line == "starting the engines: 50%, 38 s last time"
    assert pace.hear("publishing", 0.9).line == "publishing: 90%"


def test_a_detail_after_the_comma_is_no_other_phase() -> None:
    pace = StartPace(clock=Clock())
    assert pace.hear("looking, disk", 0.0).is_news
    assert not pace.hear("looking, memory", 0.0).is_news
    assert pace.hear("starting Ray", 0.0).is_news


def test_the_times_of_a_start_are_there_at_the_next(tmp_path: Path) -> None:
    clock = Clock()
    pace = StartPace(clock=clock)
    for name in ("starting Ray", "starting the engines", "ready"):
        pace.hear(name, 0.0)
        clock.now_s += 7.0
    keep_times(tmp_path, pace.times)
    assert read_times(tmp_path) == {"starting Ray": 7.0, "starting the engines": 7.0}


@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}', "{"])
def test_damaged_times_are_no_times(tmp_path: Path, text: str) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "start-times.json").write_text(text)
    assert read_times(tmp_path) == {}


def test_times_that_cannot_be_kept_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    keep_times(tmp_path, {"a": 1.0})
    assert read_times(tmp_path) == {}


@given(st.lists(st.tuples(st.sampled_from(["a", "a, x", "b"]), st.floats(0, 1), st.floats(0, 30))))
def test_no_report_is_too_odd_for_a_line(reports: list[tuple[str, float, float]]) -> None:
    clock = Clock()
    pace = StartPace({"a": 5.0}, clock=clock)
    news, changes, before = 0, 0, ("", 0.0)
    for name, share, passed_s in reports:
        clock.now_s += passed_s
        progress = pace.hear(name, share)
        assert progress.line.startswith(name)
        news += progress.is_news
        changes += name.partition(",")[0] != before[0] or share < before[1]
        before = (name.partition(",")[0], share)
    assert news <= changes + (clock.now_s - 100.0) / 10.0 + 1e-6


def test_a_served_run_writes_every_phase_into_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_up(SilentBoard())
    monkeypatch.setattr(start_report, "get_run_logger", lambda: logging.getLogger("served"))
    caplog.set_level(logging.INFO)
    report = StartReport(tmp_path)
    for name, share in (("opening MLflow", 0.0), ("starting Ray", 0.0), ("starting the engines", 0.5), ("ready", 1.0)):
        report(name, share)
    report.ready()
    assert caplog.messages[:3] == ["opening MLflow", "starting Ray", "starting the engines: 50%"]
    assert caplog.messages[-1].startswith("the first iteration begins")
    assert set(json.loads((tmp_path / "cache" / "start-times.json").read_text())) == {
        "opening MLflow",
        "starting Ray",
        "starting the engines",
    }
