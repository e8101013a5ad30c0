"""The time that a calibration takes; its laws are tested in `unit/costs`, a whole one in `integration/test_calibrate.py`."""

from dataclasses import replace

import pytest

from libra_core.costs.measured_training import TrainerLawFit
from libra_core.engines.calibration import sweeps
from libra_core.engines.calibration.calibrate import QUICK, Grid, Parts
from libra_core.engines.calibration.sweeps import sweeps_within
from libra_core.errors import DeadlineError

LAW = TrainerLawFit(
    tp=1,
    pp=1,
    micro_batch_s=0.01,
    s_per_token=1e-4,
    s_per_token2=5e-8,
    step_s=0.005,
    held_out_median_error=0.03,
    held_out_worst_error=0.1,
    batch_error=0.0,
    num_cells=15,
)


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
