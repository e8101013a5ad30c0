"""What a person can get wrong in Prefect's form."""

import logging
import re
from typing import Any

import pytest
from prefect.runtime import flow_run

from flows import comparison, names
from flows.logs import in_one_sentence, without_traceback
from flows.training import train
from libra_core.errors import ConfigError, DeadlineError, LibraError

GIVEN: list[Any] = [
    {"config": "configs/experiment/quickstart.yaml", "overrides": ["training.stps=3"]},
    {"config": "none.yaml"},
    {"config": 7, "overrides": 3},
    {"cfg": "a.yaml"},
    None,
    "quickstart",
]


@pytest.mark.parametrize("given", GIVEN)
def test_naming_a_run_never_raises(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    monkeypatch.setattr(flow_run, "parameters", {"parameters": given}, raising=False)
    assert names.training_run_name().endswith("-refused")
    assert comparison.comparison_run_name().endswith("-refused")


def test_a_refused_run_is_named_after_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_run, "parameters", {"parameters": GIVEN[0]}, raising=False)
    assert names.training_run_name() == "quickstart-refused"


def _pattern(field: str) -> re.Pattern[str]:
    schema = train.parameters.model_dump()["definitions"]["TrainParameters"]["properties"][field]
    return re.compile(schema.get("pattern") or schema["items"]["pattern"])


@pytest.mark.parametrize("override", ["training.steps=10", "seed=2", "run.root=/data/job #12", "model.tiny.num_layers=2"])
def test_the_form_takes_a_change_of_a_section(override: str) -> None:
    assert _pattern("overrides").search(override)


@pytest.mark.parametrize("override", ["training.steps 10", "trainig.steps=10", "training=3", "sed=1", "--set seed=1", ""])
def test_the_form_refuses_what_is_no_change_of_a_section(override: str) -> None:
    assert not _pattern("overrides").search(override)


def test_the_form_refuses_a_config_that_is_no_yaml_file() -> None:
    assert _pattern("config").search("configs/experiment/quickstart.yaml")
    assert not _pattern("config").search("quickstart")


def _record(error: BaseException) -> logging.LogRecord:
    exc_info = (type(error), error, None)
    return logging.LogRecord("prefect.flow_runs", logging.ERROR, "x.py", 1, "Encountered %s", ("it",), exc_info)


def test_a_refusal_is_one_sentence_in_the_log_of_its_run() -> None:
    record = _record(ConfigError("unknown key training.stps; did you mean training.steps?"))
    assert without_traceback(record)
    assert logging.Formatter().format(record) == "unknown key training.stps; did you mean training.steps?"


def test_every_logger_that_tells_how_a_run_ended_says_it_in_one_sentence() -> None:
    in_one_sentence()
    in_one_sentence()
    for name in ("prefect.flow_runs", "prefect.task_runs", "prefect.engine"):
        assert logging.getLogger(name).filters.count(without_traceback) == 1


@pytest.mark.parametrize("error", [DeadlineError("late"), ZeroDivisionError("x")])
def test_what_broke_while_running_keeps_its_traceback(error: LibraError) -> None:
    record = _record(error)
    assert without_traceback(record)
    assert record.exc_info is not None
