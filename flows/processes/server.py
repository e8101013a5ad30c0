"""Prefect's server: the one that is configured, or a private one of this process."""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_HOME

from flows.processes.first_start import one_makes_the_database
from libra_core.errors import LibraError, ResourceError

_PORTS = range(10_000, 30_000)
"""Of private servers: below those that the kernel gives to connections, and many. Prefect draws from 1000, does not notice
that another server has taken the port since, and would work with that one until it ends."""


def ensure_server() -> None:
    """Start the private server now rather than inside the flow, or reach the configured one.

    Raises:
        ResourceError: when there is no server to work with.
        DeadlineError: when another process does not get Prefect's database ready.
    """
    url = PREFECT_API_URL.value()
    alone: AbstractContextManager[None] = nullcontext() if url else one_makes_the_database(PREFECT_HOME.value())
    try:
        with alone:
            if not url:
                _draw_port()
            with get_client(sync_client=True) as client:
                client.hello().raise_for_status()
    except (httpx.HTTPError, PrefectHTTPStatusError, RuntimeError) as error:
        if url:
            raise ResourceError(
                f"no Prefect server answers at PREFECT_API_URL = {url} ({error}); start it or unset the variable"
            ) from None
        raise ResourceError(
            f"Prefect's private server did not start ({error}); try again, set PREFECT_API_URL, or see its own log with "
            "PREFECT_LOGGING_SERVER_LEVEL=ERROR"
        ) from None


def require_server() -> str:
    """Address of the configured server, reached; a private one cannot serve deployments."""
    url = PREFECT_API_URL.value()
    if not url:
        raise ResourceError("serving needs a Prefect server: run `make ui` and set PREFECT_API_URL=http://127.0.0.1:4200/api")
    ensure_server()
    return url


def _draw_port() -> None:
    from prefect.server.api.server import SubprocessASGIServer

    server = SubprocessASGIServer()
    if server.port is None:
        free = (port for port in random.sample(_PORTS, k=100) if server.is_port_available(port))
        server.port = next(free, None)


@contextmanager
def reasons_of_refusals() -> Iterator[None]:
    """A server that cannot record how a flow ended, on a full disk for example, does not hide why it ended.

    Raises:
        LibraError: the flow's own, else one of the server's refusal.
    """
    try:
        yield
    except PrefectHTTPStatusError as error:
        behind: BaseException | None = error
        while behind is not None and not isinstance(behind, LibraError):
            behind = behind.__cause__ or behind.__context__
        raise behind or ResourceError(
            f"Prefect's server could not record the run (status {error.response.status_code}); "
            f"is the disk of {PREFECT_HOME.value()} full? Make room and resume the run"
        ) from None
