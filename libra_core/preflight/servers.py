"""Servers of others: whether something answers where the configuration says. Private ones are started by the run."""

import ipaddress
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from libra_core.config import LibraConfig
from libra_core.config.loading import prefect_address, tracking_uri_of_environment
from libra_core.config.workload import SearchR1Config
from libra_core.errors import ResourceError

_KNOCK_S = 5.0


def prefect() -> str:
    address = prefect_address()
    if not address:
        return "a private server, for the time of the run"
    knock(f"{address.rstrip('/')}/health", "Prefect (PREFECT_API_URL)", "start it, or unset the variable")
    return f"{address} answers"


def mlflow(config: LibraConfig) -> str:
    """Whether it answers; that its experiment can be used is seen when the run opens it."""
    if config.tracking.mlflow_uri == "off":
        return "off: records go to the run folder alone"
    uri = config.tracking.mlflow_uri or tracking_uri_of_environment()
    if uri is None:
        return f"a database in {Path(config.run.root).absolute()}"
    if urlsplit(uri).scheme in {"http", "https"}:
        whose = "MLFLOW_TRACKING_URI" if config.tracking.mlflow_uri is None else "tracking.mlflow_uri"
        remedy = "start it, correct the address, or set tracking.mlflow_uri to `off`"
        knock(f"{uri.rstrip('/')}/health", f"MLflow ({whose})", remedy)
        return f"{uri} answers"
    return f"{uri}, opened when the run starts"


def ray(config: LibraConfig) -> str:
    address = config.backend.ray_address
    if address == "local":
        return "a private one, for the time of the run"
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in address:
        return f"{address}, joined when the run starts"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise ResourceError(
            f"no Ray cluster answers at backend.ray_address = {address} ({error}); start it, or correct the address"
        ) from None
    return f"{address} answers"


def retriever(config: LibraConfig) -> str:
    settings = config.workload
    if not isinstance(settings, SearchR1Config) or settings.url is None:
        return "none of another host"
    knock(settings.url, f"retriever {settings.retriever} (workload.url)", "start it, or correct the address")
    return f"{settings.url} answers"


def knock(url: str, who: str, remedy: str) -> None:
    """Any answer will do, also a refusal. Raises `ResourceError`."""
    try:
        httpx.get(url, timeout=_KNOCK_S, trust_env=not _is_loopback(url))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ResourceError(
            f"no {who} answers at {url} within {_KNOCK_S:.0f} s ({error or type(error).__name__}); {remedy}"
        ) from None


def _is_loopback(url: str) -> bool:
    """Proxies are for other hosts."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
