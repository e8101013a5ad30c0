"""The time that a calibration takes; its laws are tested in `unit/costs`, a whole one in `integration/test_calibrate.py`."""

import pytest

from libra_core.engines.calibration import sweeps
from libra_core.engines.calibration.calibrate import QUICK, Grid
from libra_core.engines.calibration.sweeps import sweeps_within


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
