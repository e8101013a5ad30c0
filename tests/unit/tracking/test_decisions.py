"""The ledger of looks at the plan, and `libra decisions`."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from libra_core.planning.decision import PastComparisons, ReplanPolicy, decide
from libra_core.planning.experience import ErrorBook
from libra_core.tracking.decisions import (
    FILE_NAME,
    append_decision,
    append_outcome,
    append_realised,
    append_resolved,
    count,
    decision_row,
    drop_decisions_from,
    read_decisions,
)
from libra_core.tracking.ledger import decision_metrics, ledger_summary, ledger_tags
from libra_core.tracking.recorder import NullTracker, Recorder
from libra_core.tracking.run_folder import Journal, write_journal
from libra_core.types.decision import Decision, Outcome, Realised, ResolvedDecision
from libra_core.types.plan import Plan
from libra_core.types.transition import TransitionOutcome
from support.decisions import candidate, comparison, plan
from support.plan_manager import FakePlanManager
from tasks.plan_words import decision_line, decision_markdown

SERVING, TRAINING = plan(), plan(training=1)


def decision(step: int, *, to: Plan = TRAINING, t_iter_s: float = 10.0) -> Decision:
    compared = comparison(candidate(SERVING, 20.0), candidate(to, t_iter_s), step=step)
    return decide(compared, ReplanPolicy(), PastComparisons())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_journal(tmp_path, Journal())
    append_decision(tmp_path, decision(5, t_iter_s=19.9))
    append_decision(tmp_path, decision(10))
    append_outcome(tmp_path, 10, Outcome.DONE, seconds={"join training hybrid-0": 1.5})
    append_realised(tmp_path, Realised(step=10, gain_s_per_step=8.0, t_iter_s=12.0, cost_s=31.0))
    return tmp_path


def test_refused_looks_are_in_it_and_applied_ones_have_their_realised_gain(run: Path) -> None:
    refused, applied = read_decisions(run)
    assert (refused["step"], refused["verdict"], refused["reason"]) == (5, "keep", "gain below the error of the forecast")
    assert "realised_gain_s_per_step" not in refused
    assert (applied["gain_s_per_step"], applied["realised_gain_s_per_step"], applied["realised_cost_s"]) == (10.0, 8.0, 31.0)
    assert applied["cost_parts_s"] == {"drain_s": 30.0, "transfer_s": 0.0, "start_s": 30.0}
    assert applied["action_s"] == {"join training hybrid-0": 1.5}
    assert (applied["current"]["hybrids_training"], applied["candidate"]["hybrids_training"]) == (0, 1)


def test_a_look_without_a_forecast_is_valid_json(run: Path) -> None:
    append_decision(run, decision(15, t_iter_s=math.nan))
    assert "NaN" not in (run / FILE_NAME).read_text()
    assert read_decisions(run)[-1]["gain_s_per_step"] is None
    assert "no forecast" in CliRunner().invoke(app, ["decisions", str(run)], env={"COLUMNS": "250"}).stdout


def test_a_line_cut_off_by_a_crash_is_left_out(run: Path) -> None:
    with (run / FILE_NAME).open("a") as file:
        file.write('{"kind": "decision", "step": 15, "verd')
    assert [row["step"] for row in read_decisions(run)] == [5, 10]


def test_a_resumed_run_forgets_the_looks_that_it_takes_again(run: Path) -> None:
    drop_decisions_from(run, 10)
    assert [row["step"] for row in read_decisions(run)] == [5]
    append_realised(run, Realised(step=10, gain_s_per_step=8.0, t_iter_s=12.0, cost_s=31.0))
    assert [row["step"] for row in read_decisions(run)] == [5]


def test_the_command_prints_one_json_object(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert CliRunner().invoke(app, ["decisions", str(run), "--json"]).exit_code == 0
    printed = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (printed["rounds"], printed["switches"]) == (2, 1)
    assert printed["decisions"] == read_decisions(run)


def test_the_command_prints_a_table(run: Path) -> None:
    append_outcome(run, 10, Outcome.UNDONE, error="no luck")
    shown = CliRunner().invoke(app, ["decisions", str(run)], env={"COLUMNS": "250"}).stdout
    assert "dp 2 (tp 1 pp 1) + 6 x tp1, 0 of 2 hybrids train" in shown
    assert "undone" in shown
    assert "2 rounds, switches: 0 done, 1 undone" in shown


def test_a_folder_that_is_no_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["decisions", str(tmp_path)])
    assert refused.exit_code == 2
    assert "is not a run folder" in refused.stderr


def test_a_line_after_one_cut_off_by_a_crash_is_whole(run: Path) -> None:
    with (run / FILE_NAME).open("a") as file:
        file.write('{"kind": "decision", "st')
    append_decision(run, decision(20))
    assert [row["step"] for row in read_decisions(run)] == [5, 10, 20]


def test_the_summary_of_a_run_has_predicted_and_realised_gain_of_each_switch(run: Path) -> None:
    summary = ledger_summary(read_decisions(run), replanning_s=0.5, wall_s=100.0)
    (switch,) = summary["switches"]
    assert (summary["rounds"], summary["share_of_run"]) == (2, 0.005)
    assert (switch["predicted_gain_s_per_step"], switch["realised_gain_s_per_step"], switch["hybrids_training"]) == (
        10.0,
        8.0,
        [0, 1],
    )
    assert ledger_tags(read_decisions(run))["plan.switches"] == "1"
    assert ledger_summary([], replanning_s=0.0, wall_s=1.0) == {}
    assert ledger_tags([]) == {}


def test_a_page_of_a_decision_has_both_plans_side_by_side(run: Path) -> None:
    page = decision_markdown(read_decisions(run)[1])
    assert page.startswith("**step 10: switch to dp 2 (tp 1 pp 1) + 6 x tp1, 1 of 2 hybrids train (pays): done**")
    assert "| iteration | 20.00 s | 10.00 s |" in page
    assert "| B: fleet | 1.00 s | 1.00 s |" in page


ENDS = {
    Outcome.DONE: ResolvedDecision(step=10, outcome=TransitionOutcome(plan=TRAINING, applied=True)),
    Outcome.UNDONE: ResolvedDecision(
        step=10, outcome=TransitionOutcome(plan=SERVING, applied=False, error="no luck", not_undone=("engine-3 is away",))
    ),
    Outcome.ABANDONED: ResolvedDecision(step=10, abandoned=True),
}


class Noted(NullTracker):
    """Sums of metrics, and tags."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.tags: dict[str, str] = {}

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.sums.update({name: value for name, value in metrics.items() if name == "plan/switch"})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self.tags |= tags


@pytest.mark.parametrize("ending", [*ENDS, None])
def test_a_decision_has_one_outcome_and_all_counts_of_it_agree(ending: Outcome | None, tmp_path: Path) -> None:
    write_journal(tmp_path, Journal())
    tracker = Noted()
    recorder = Recorder(tmp_path, tracker)
    profile = FakePlanManager(forecasts={}).profile(10)
    recorder.record_decision(decision(5, t_iter_s=19.9), profile)
    begun = recorder.record_decision(decision(10), profile)
    assert decision_line(begun).endswith("(pays): under way")
    row = recorder.record_resolved(ENDS[ending]) if ending else None
    recorder.finish("FINISHED")

    expected = ending or Outcome.ABANDONED
    rows = read_decisions(tmp_path)
    assert [row["outcome"] for row in rows] == ["kept", expected]
    assert row is None or f"(pays): {expected}" in decision_line(row)
    done = int(expected is Outcome.DONE)
    shown = count(rows)
    assert shown.done == done == int(tracker.tags["plan.switches"]) == tracker.sums["plan/switch"]
    assert len(ledger_summary(rows, replanning_s=0.0, wall_s=1.0)["switches"]) == done
    assert (shown.undone, shown.abandoned) == (int(tracker.tags["plan.undone"]), int(tracker.tags["plan.abandoned"]))


def test_what_could_not_be_undone_is_told(run: Path) -> None:
    append_resolved(run, ENDS[Outcome.UNDONE])
    assert read_decisions(run)[-1]["error"] == "no luck; engine-3 is away"


def test_a_move_of_a_killed_run_is_abandoned_when_the_run_is_resumed(tmp_path: Path) -> None:
    write_journal(tmp_path, Journal())
    append_decision(tmp_path, decision(10))
    Recorder(tmp_path, NullTracker(), first_step=12)
    assert [row["outcome"] for row in read_decisions(tmp_path)] == ["abandoned"]


def test_the_error_of_forecasts_is_told_where_it_was_measured_and_nowhere_else() -> None:
    assumed, profile = decision(10), FakePlanManager(forecasts={}).profile(10)
    assert "no forecast of this run has been compared yet" in decision_markdown(decision_row(assumed))
    assert "plan/forecast_error_fraction" not in decision_metrics(assumed, profile)
    book = ErrorBook().including(150.0, 100.0)
    compared = comparison(candidate(SERVING, 20.0), candidate(TRAINING, 5.0), step=10)
    measured = decide(replace(compared, forecast_error=book.error, error_measured=True), ReplanPolicy(), PastComparisons())
    assert "forecasts of this run are off by 50%" in decision_markdown(decision_row(measured))
    assert decision_metrics(measured, profile)["plan/forecast_error_fraction"] == 0.5
    assert (ErrorBook().measured, book.measured) == (False, True)
