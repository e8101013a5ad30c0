"""A Prefect server that refuses to record an end does not hide the reason of the end."""

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError

from flows.processes.server import reasons_of_refusals
from libra_core.errors import ResourceError


def refusal() -> PrefectHTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1:1/api/flow_runs/x/set_state")
    return PrefectHTTPStatusError("Server error", request=request, response=httpx.Response(500, request=request))


def test_the_reason_of_the_run_is_said_and_not_that_it_could_not_be_recorded() -> None:
    later = refusal()
    later.__context__ = ResourceError("cannot use metrics.jsonl: No space left on device")
    with pytest.raises(ResourceError, match="No space left on device"), reasons_of_refusals():
        raise later


def test_a_refusal_without_a_reason_names_the_disk_of_the_server() -> None:
    with pytest.raises(ResourceError, match=r"status 500.*full\? Make room"), reasons_of_refusals():
        raise refusal()
