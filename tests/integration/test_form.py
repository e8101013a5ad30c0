"""A mistake in the form, at a real Prefect server: refused before there is a run, or the run ends as failed with a sentence."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.testing.utilities import prefect_test_harness

from flows.training import train

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CONFIG = str(Path(__file__).parents[2] / "configs" / "experiment" / "quickstart.yaml")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield


def _ended(overrides: list[str]) -> tuple[State[Any], str, list[str]]:
    """State, name and log of a run with these overrides."""
    state: State[Any] = train(parameters={"config": CONFIG, "overrides": overrides}, return_state=True)  # type: ignore[call-overload]
    flow_run_id = state.state_details.flow_run_id
    assert flow_run_id is not None
    with get_client(sync_client=True) as client:
        name, chosen = client.read_flow_run(flow_run_id).name, LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id]))
        for _ in range(40):  # logs are sent in batches
            lines = [log.message for log in client.read_logs(chosen)]
            if any("Finished" in line for line in lines):
                return state, name, lines
            time.sleep(0.5)
    raise AssertionError(f"the log of {name} has not arrived: {lines}")


def test_a_key_that_does_not_exist_ends_the_run_as_failed_with_one_sentence() -> None:
    state, name, lines = _ended(["training.stps=3"])
    assert state.is_failed()
    assert name == "quickstart-refused"
    assert "unknown key training.stps; did you mean training.steps?" in str(state.message)
    assert not any("Traceback" in line for line in lines)
    assert len({line for line in lines if "training.stps" in line}) <= 2  # the sentence, and the state that it ends in


def test_what_the_host_lacks_ends_the_run_as_failed_before_it_has_a_folder(tmp_path: Path) -> None:
    changes = [f"run.root={tmp_path}/runs", "backend.min_free_memory_gib=100000"]
    state, name, lines = _ended(changes)
    assert state.is_failed()
    assert name == "quickstart-libra-s0"
    assert "of memory are free" in str(state.message)
    assert not any("Traceback" in line for line in lines)
    assert not list(tmp_path.glob("runs/*/journal.json"))


def test_the_server_refuses_a_change_of_no_section_before_there_is_a_run() -> None:
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(train)
        deployment = client.create_deployment(
            flow_id, name="form", parameter_openapi_schema=train.parameters.model_dump(), enforce_parameter_schema=True
        )
        for wrong in ({"overrides": ["trainig.steps=3"]}, {"overrides": ["training.steps 3"]}, {"config": "quickstart"}):
            with pytest.raises(PrefectHTTPStatusError, match="409"):
                client.create_flow_run_from_deployment(deployment, parameters={"parameters": wrong})
        client.create_flow_run_from_deployment(deployment, parameters={"parameters": {"overrides": ["training.steps=3"]}})
