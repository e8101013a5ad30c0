"""The time that a calibration takes; its laws are tested in `unit/costs`, a whole one in `integration/test_calibrate.py`."""

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from libra_core.costs.measured_training import TrainerLawFit
from libra_core.engines.calibration import meter, sweeps
from libra_core.engines.calibration.calibrate import QUICK, Grid, Parts, calibration_spec
from libra_core.engines.calibration.sweeps import sweeps_within
from libra_core.errors import DeadlineError, EngineLostError, ResourceError
from support.laws import trainer_law

LAW = trainer_law()


class Clock:
    """Moves only when told."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def swept(monkeypatch: pytest.MonkeyPatch, most: int, budget_s: float, each_s: float) -> tuple[int, list[str]]:
    """How many sweeps of `each_s` are made, and what is said."""
    clock, said, made = Clock(), [], 0
    monkeypatch.setattr(sweeps, "time", clock)
    for _ in sweeps_within("engine TP1", most, budget_s, said.append):
        clock.now_s += each_s
        made += 1
    return made, said


@pytest.mark.parametrize(("budget_s", "made"), [(1000.0, 5), (60.0, 4), (59.0, 3), (1.0, 2)])
def test_sweeps_stop_before_they_would_pass_the_budget(monkeypatch: pytest.MonkeyPatch, budget_s: float, made: int) -> None:
    assert swept(monkeypatch, 5, budget_s, 15.0)[0] == made


def test_each_sweep_is_announced_with_the_time_so_far_and_an_early_end_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    _, said = swept(monkeypatch, 5, 59.0, 15.0)
    assert said[1] == "engine TP1: sweep 2 of 5 (15 s)"
    assert said[-1] == "engine TP1: stopped after 3 of 5 sweeps, one more would not end within 59 s"


@pytest.mark.parametrize("grid", [Grid(), QUICK], ids=["full", "quick"])
def test_the_budgets_of_all_parts_leave_time_to_start_them_within_ten_minutes(grid: Grid) -> None:
    parts = len(grid.degrees) + len(grid.trainer.layouts)
    assert len(grid.degrees) * grid.budget_s + len(grid.trainer.layouts) * grid.trainer.budget_s + parts * 25 < 600


def failing() -> TrainerLawFit:
    raise DeadlineError("no answer within 180 s")


def test_a_part_that_fails_costs_its_own_law_only() -> None:
    said: list[str] = []
    parts = Parts(said.append)
    parts.add("trainer TP1 PP1", lambda: LAW)
    parts.add("trainer TP2 PP1", failing)
    parts.add("trainer TP1 PP2", lambda: replace(LAW, pp=2))
    assert [(law.tp, law.pp) for law in parts.laws if isinstance(law, TrainerLawFit)] == [(1, 1), (1, 2)]
    assert parts.missing == ["trainer TP2 PP1: no answer within 180 s"]
    assert said == ["trainer TP2 PP1: not measured, no answer within 180 s"]


def test_a_host_on_which_the_first_part_fails_is_no_host_to_calibrate() -> None:
    with pytest.raises(DeadlineError):
        Parts(lambda _line: None).add("engine TP1", failing)


def test_an_engine_that_fails_to_start_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    class Broken:
        def __init__(self, *_arguments: object, **_named: object) -> None:
            pass

        def call(self, *_arguments: object, **_named: object) -> None:
            raise EngineLostError("no memory")

        def close(self) -> None:
            ended.append(True)

    monkeypatch.setattr(meter, "RemoteObject", Broken)
    with pytest.raises(EngineLostError):
        meter.EngineMeter(calibration_spec(tmp_path, 1), vocab_size=8, log=tmp_path / "log")
    assert ended == [True]


class SteppingEngine:
    """Answers every request at once, and reports the steps that it was told to."""

    def __init__(self, *_arguments: object, **_named: object) -> None:
        self.steps: list[tuple[int, float]] = [(2, 9.0)] * 50

    def call(self, method: str, *_arguments: object, **_named: object) -> Any:
        if method == "take_steps":
            taken, self.steps = self.steps, []
            return taken
        return "facts"

    def submit(self, _method: str, _request: object) -> Future[None]:
        self.steps = [(1, 7.0), *((2, 0.010) for _ in range(30)), (2, 0.5), (2, 0.4)]
        answer: Future[None] = Future()
        answer.set_result(None)
        return answer

    def close(self) -> None: ...


def test_by_the_wall_clock_a_step_that_the_host_held_up_does_not_move_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "RemoteObject", SteppingEngine)
    engine = meter.EngineMeter(calibration_spec(tmp_path, 2), vocab_size=8, log=tmp_path / "log")
    cell = engine.decode_step(2, 100, 28)
    assert (cell.batch, cell.step_s) == (2, 0.010)
    assert cell.context_tokens == 2 * (100 + 6 + 14)
    with pytest.raises(ResourceError, match="decoded 3 sequences together in 0 of 28 steps"):
        engine.decode_step(3, 100, 28)


@pytest.mark.parametrize("output", ["file/profile.yaml", "folder"])
def test_a_profile_that_cannot_be_stored_is_refused_before_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("libra_core.engines.calibration.calibrate.calibrate", lambda *_: pytest.fail("it has measured"))
    done = CliRunner().invoke(app, ["calibrate", "--output", str(tmp_path / output)])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "choose another --output" in done.stderr
