"""Prefect's server: the one that is configured, or a private one of this process."""

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from libra_core.errors import ResourceError


def ensure_server() -> None:
    """Start the private server now rather than inside the flow, or reach the configured one.

    Raises:
        ResourceError: when there is no server to work with.
    """
    url = PREFECT_API_URL.value()
    try:
        with get_client(sync_client=True) as client:
            client.hello().raise_for_status()
    except (httpx.HTTPError, PrefectHTTPStatusError, RuntimeError) as error:
        if url:
            raise ResourceError(
                f"no Prefect server answers at PREFECT_API_URL = {url} ({error}); start it or unset the variable"
            ) from None
        raise ResourceError(f"Prefect's private server did not start ({error}); try again, or set PREFECT_API_URL") from None


def require_server() -> str:
    """Address of the configured server, reached; a private one cannot serve deployments."""
    url = PREFECT_API_URL.value()
    if not url:
        raise ResourceError("serving needs a Prefect server: run `make ui` and set PREFECT_API_URL=http://127.0.0.1:4200/api")
    ensure_server()
    return url
