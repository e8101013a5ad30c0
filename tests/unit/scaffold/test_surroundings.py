"""Proxies and stream encodings of the environment."""

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import requests

from flows.command_line.terminal import terminal
from libra_core.surroundings import children_write_any_text, have_a_home, own_hosts, print_in_a_width, reach_own_host_directly

ROOT = Path(__file__).parents[3]
NAMES = [spelling for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for spelling in (name, name.upper())]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*NAMES, "PYTHONIOENCODING"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    for name in NAMES:
        os.environ.pop(name, None)


@pytest.mark.parametrize("name", [name for name in NAMES if "no_" not in name.lower()])
def test_own_servers_are_asked_without_a_proxy_and_others_with_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    reach_own_host_directly()
    scheme = "https" if name.lower() == "https_proxy" else "http"
    with httpx.Client() as client:
        assert all(_direct(client, f"{scheme}://{_in_url(host)}:4200") for host in own_hosts())
        assert not _direct(client, f"{scheme}://example.org")
    asked = requests.utils.get_environ_proxies(f"{scheme}://127.0.0.1:4200", no_proxy=None)
    assert asked == {}


def test_what_was_excepted_stays_excepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "a.example, b.example")
    monkeypatch.setenv("NO_PROXY", "c.example")
    reach_own_host_directly()
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"]
    assert os.environ["no_proxy"].split(",")[:4] == ["a.example", "b.example", "c.example", "localhost"]


def test_a_proxy_that_no_client_could_use_does_not_stop_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "gopher://127.0.0.1:9")
    reach_own_host_directly()
    httpx.Client().close()


def test_without_a_proxy_nothing_is_set() -> None:
    reach_own_host_directly()
    assert not os.environ.keys() & set(NAMES)


def test_children_of_an_ascii_stream_write_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    children_write_any_text()
    done = subprocess.run([sys.executable, "-c", "print('η')"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "\\u03b7\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "ascii:strict"])
def test_a_plan_is_printed_to_a_stream_without_unicode(encoding: str, tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding, "PREFECT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "libra_core.launch", "plan", "r2e_gym_48gpu"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    assert b"staleness eta = 1" in done.stdout


@pytest.mark.parametrize(("columns", "kept"), [("0", False), ("3", False), ("40", True), ("wide", True)])
def test_a_width_without_room_is_forgotten(columns: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_in_a_width()
    assert (os.environ.get("COLUMNS") == columns) is kept
    assert terminal().width >= 20


def test_a_user_without_name_and_home_has_one_for_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nameless)
    have_a_home()
    assert Path.home() == Path(tempfile.gettempdir())


def _direct(client: httpx.Client, url: str) -> bool:
    return client._transport_for_url(httpx.URL(url)) is client._transport


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
