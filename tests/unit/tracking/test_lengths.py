from pathlib import Path

import pytest

from libra_core.planning.history_file import read_history
from libra_core.tracking import lengths
from libra_core.tracking.lengths import FILE_NAME, LengthLog
from libra_core.types.lengths import LengthRecord


def record(step: int, tokens: int = 5) -> LengthRecord:
    return LengthRecord(
        prompt_tokens=7, generated_tokens=(tokens, 3), tool_tokens=(2,), tool_s=(0.25,), step=step, engine="engine-0"
    )


def test_what_is_logged_is_read_as_history(tmp_path: Path) -> None:
    LengthLog(tmp_path).append([record(0, 5), record(0, 6)])
    assert read_history(tmp_path / FILE_NAME) == [record(0, 5), record(0, 6)]


def test_a_resumed_run_forgets_what_it_does_again_and_a_torn_line(tmp_path: Path) -> None:
    LengthLog(tmp_path).append([record(0), record(1), record(2)])
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"prompt_tokens": 7, "gen')
    LengthLog(tmp_path, first_step=2).append([record(2, 9)])
    assert read_history(tmp_path / FILE_NAME) == [record(0), record(1), record(2, 9)]


def test_a_long_run_keeps_its_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "MOST", 8)
    log = LengthLog(tmp_path)
    for step in range(30):
        log.append([record(step)])
    steps = [item.step for item in read_history(tmp_path / FILE_NAME)]
    assert steps == list(range(30 - len(steps), 30))
    assert 8 <= len(steps) <= 10
