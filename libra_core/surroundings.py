"""What other programs put into the environment, made harmless for ours: proxies, and a stream encoding without η."""

import os
import socket
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "ws_proxy", "wss_proxy", "grpc_proxy")
_EXCEPTIONS: Final = "no_proxy"
_LEAST_COLUMNS: Final = 20
_SOCKS: Final = ("socks5", "socks5h")


def reach_own_host_directly() -> None:
    """Keep this host's names and addresses away from proxies, in this process and in all that it starts.

    Prefect, MLflow, Ray and retrievers are served on loopback or on an address of this host. What the variables say of other
    hosts stays. A proxy that no installed client could speak to is taken out: clients refuse to start at its sight.
    Call it before the first client is made; without proxy variables it does nothing.
    """
    given = [name for name in _spellings(_PROXIES) if os.environ.get(name)]
    if not given:
        return
    for name in given:
        if not _usable(os.environ[name]):
            del os.environ[name]
    kept = [host.strip() for name in _spellings((_EXCEPTIONS,)) for host in os.environ.get(name, "").split(",")]
    if "*" in kept:
        return
    hosts = ",".join(dict.fromkeys(host for host in (*kept, *own_hosts()) if host))
    for name in _spellings((_EXCEPTIONS,)):
        os.environ[name] = hosts


def own_hosts() -> Iterator[str]:
    """Loopback and every name and address of this host."""
    import psutil

    yield from ("localhost", "127.0.0.1", "::1", "0.0.0.0")
    name = socket.gethostname()
    yield from (name, name.partition(".")[0])
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6) and "%" not in address.address:
                yield address.address


def children_write_any_text() -> None:
    """Let Python children with a stream encoding such as ASCII write what it lacks as escapes instead of ending."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    if encoding and errors in ("", "strict", "surrogateescape"):
        os.environ["PYTHONIOENCODING"] = f"{encoding}:backslashreplace"


def print_in_a_width() -> None:
    """Forget a width of the terminal that has no room for a word, such as the 0 of a terminal without a size: nothing is printed
    in it."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) < _LEAST_COLUMNS:
        del os.environ["COLUMNS"]


def have_a_home() -> None:
    """A user that is only a number, as in containers, may have none, and libraries end at their import without one."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = tempfile.gettempdir()


def _spellings(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        yield from (name, name.upper())


def _usable(proxy: str) -> bool:
    scheme = urlsplit(proxy).scheme if "://" in proxy else "http"
    return scheme in ("http", "https") or (scheme in _SOCKS and find_spec("socksio") is not None)


def children_find(folder: Path) -> None:
    """Let Python children import from this folder before all others."""
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join((str(folder), *others))
