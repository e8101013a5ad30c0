import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.asked_replanning import replan
from flows.comparison import comparison
from flows.hooks import end_as, end_run_folder
from flows.iteration import iteration_flow
from flows.replanning import replanning
from flows.training import train
from libra_core.tracking.run_folder import Journal, read_journal, write_journal
from libra_core.types.session import SessionRef
from support.session import FakeBackend
from tasks.connection import using

FLOWS: list[Any] = [train, comparison, replan, iteration_flow, replanning]


def _hooks(flow: Any) -> list[Callable[..., Any]]:
    kinds = (flow.on_cancellation_hooks, flow.on_failure_hooks, flow.on_crashed_hooks, flow.on_completion_hooks)
    return [hook for hooks in kinds for hook in hooks or []]


def test_open_session_is_closed_once(tmp_path: Path) -> None:
    session = SessionRef(run_id="r", run_dir=str(tmp_path), ray_address="local", namespace="n")
    write_journal(tmp_path, Journal(session=session))
    backend = FakeBackend()
    with using(backend):
        end_run_folder(tmp_path, "KILLED")
        end_run_folder(tmp_path, "KILLED")
    assert backend.closed == 1
    assert read_journal(tmp_path).session is None


def test_hooks_have_names_that_prefect_can_show() -> None:
    assert end_as("FAILED").__name__ == "end_as_failed"


def test_training_has_a_hook_for_every_end_that_its_own_process_may_miss() -> None:
    assert train.on_cancellation_hooks
    assert train.on_crashed_hooks


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_every_hook_takes_the_names_that_prefects_runner_calls_it_with(flow: Any) -> None:
    for hook in _hooks(flow):
        inspect.signature(hook).bind(flow=flow, flow_run=None, state=None)


def test_a_hook_of_a_run_whose_parameters_were_refused_has_nothing_to_end(tmp_path: Path) -> None:
    refused: Any = type("FlowRun", (), {"id": "x", "parameters": {"parameters": {"config": str(tmp_path / "none.yaml")}}})
    end_as("KILLED")(flow=train, flow_run=refused, state=refused)
