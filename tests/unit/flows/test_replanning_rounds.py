"""Replanning rounds run beside the iteration that follows; Prefect and the run are stand-ins."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import replanning
from flows.replanning import ReplanningRounds
from libra_core.config.loading import validate_config
from libra_core.errors import ConfigError, DeadlineError, ResourceError
from libra_core.types.reports import IterationReport
from support.decisions import candidate, comparison, plan
from support.plan_manager import FakePlanManager
from support.reports import iteration_report

DECISION = FakePlanManager(forecasts={}).decide([comparison(candidate(plan(), 20.0), candidate(plan(training=1), 5.0))])


class Run:
    """Of a training run, what looks use."""

    def __init__(self, folder: Path) -> None:
        self.session = None
        self.config = validate_config({"orchestration": {"server_outage_s": 0.2}})
        self.kept_s = 0.0
        self.recorder = SimpleNamespace(run_dir=folder, add_replanning=self._add_look, usual_tokens_per_s=lambda before: None)

    def _add_look(self, seconds: float) -> None:
        self.kept_s += seconds


Make = Callable[..., tuple[ReplanningRounds, Run, list[int]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """Rounds of a run whose round at a step is `call`, and the steps at which decisions were resolved."""

    def build(call: Callable[[int], Any], *, due: frozenset[int] = frozenset({0, 1})) -> tuple[ReplanningRounds, Run, list[int]]:
        resolved: list[int] = []
        manager = FakePlanManager(forecasts=dict.fromkeys(due, 5.0))
        monkeypatch.setattr(replanning, "connect", lambda _: SimpleNamespace(planner=manager))

        def resolve(_: Any, report: IterationReport | None) -> None:
            resolved.append(-1 if report is None else report.step)

        monkeypatch.setattr(replanning, "follow_decisions", resolve)
        monkeypatch.setattr(replanning, "get_run_logger", lambda: SimpleNamespace(info=lambda *_: None, warning=lambda *_: None))
        monkeypatch.setattr(replanning, "_replan", lambda _, step: call(step))
        run = Run(tmp_path)
        return ReplanningRounds(run), run, resolved  # type: ignore[arg-type]

    return build


def test_the_iteration_goes_on_while_a_look_runs_and_the_next_boundary_waits_for_it(make: Make) -> None:
    next_iteration, ended = threading.Event(), threading.Event()

    def call(step: int) -> Any:
        assert next_iteration.wait(10)
        ended.set()
        return DECISION

    rounds, run, resolved = make(call, due=frozenset({0}))
    rounds.after(iteration_report(0))
    assert not ended.is_set()
    next_iteration.set()
    rounds.after(iteration_report(1))
    assert ended.is_set()
    rounds.conclude()
    assert resolved == [0, 1, -1]
    assert run.kept_s > 0


def test_the_run_does_not_conclude_before_its_last_look(make: Make) -> None:
    ended = threading.Event()

    def call(step: int) -> Any:
        threading.Event().wait(0.1)
        ended.set()
        return DECISION

    rounds, _, resolved = make(call)
    rounds.after(iteration_report(0))
    rounds.conclude()
    assert ended.is_set()
    assert resolved == [0, -1]


def test_what_a_look_raises_ends_the_training_at_the_next_boundary(make: Make) -> None:
    def call(step: int) -> Any:
        raise ResourceError("no actor answers")

    rounds, _, _ = make(call)
    rounds.after(iteration_report(0))
    with pytest.raises(ResourceError, match="no actor answers"):
        rounds.after(iteration_report(1))


def test_a_look_without_measurements_is_a_warning_and_answers_the_request(make: Make, tmp_path: Path) -> None:
    def call(step: int) -> Any:
        raise ConfigError("nothing was measured")

    rounds, _, resolved = make(call, due=frozenset())
    replanning.ask_for_replanning(tmp_path)
    rounds.after(iteration_report(0))
    rounds.conclude()
    assert not (tmp_path / replanning.REQUEST).exists()
    assert resolved == [0, -1]


def test_a_look_that_never_ends_is_told_with_what_was_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(replanning, "_ROUND_DEADLINE_S", 0.1)
    rounds, _, _ = make(lambda step: release.wait(20))
    rounds.after(iteration_report(0))
    with pytest.raises(DeadlineError, match=r"waited 0 s .* for its replanning round"):
        rounds.conclude()
    release.set()


def test_a_checkpoint_is_made_while_nothing_is_under_way_and_whatever_a_look_raised(make: Make) -> None:
    ended = threading.Event()

    def call(step: int) -> Any:
        threading.Event().wait(0.1)
        ended.set()
        raise ResourceError("no actor answers")

    rounds, _, _ = make(call)
    rounds.after(iteration_report(0))
    rounds.rest()
    assert ended.is_set()
    with pytest.raises(ResourceError, match="no actor answers"):
        rounds.after(iteration_report(1))
