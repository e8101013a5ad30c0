"""Containers by docker's own client, against an engine that only listens: what it sends, and what it makes of refusals."""

import asyncio
import json
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from libra_core.errors import SandboxLostError
from libra_core.workloads.sandbox.container import FIRST_PROCESS, ContainerSandbox
from libra_core.workloads.sandbox.types import SandboxCommand
from support.sandboxes import LIMITS

needs_client = pytest.mark.skipif(shutil.which("docker") is None, reason="docker's client is not installed")
IMAGE = "repo/image:1"
TRUE = SandboxCommand(argv=("/bin/true",))


class _Engine(socketserver.ThreadingUnixStreamServer):
    """Creates and starts a container, states that it stopped, and refuses to run anything in it."""

    daemon_threads = True
    created: dict[str, Any]


class _Answers(BaseHTTPRequestHandler):
    def _say(self, status: int, body: dict[str, Any] | None = None) -> None:
        text = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Api-Version", "1.47")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_HEAD(self) -> None:
        self._say(200)

    def do_GET(self) -> None:
        self._say(200, {"Id": "abc", "State": {"Running": False, "Status": "exited"}, "Config": {"Tty": False}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "/containers/create" in self.path:
            assert isinstance(self.server, _Engine)
            self.server.created = json.loads(body)
            self._say(201, {"Id": "abc", "Warnings": []})
        elif self.path.endswith("/start"):
            self._say(204)
        else:
            self._say(409, {"message": "container abc is not running"})

    def do_DELETE(self) -> None:
        self._say(204)

    def log_message(self, format: str, *args: Any) -> None:
        return None

    def address_string(self) -> str:
        return "client"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Engine]:
    with _Engine(str(tmp_path / "engine"), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
        yield server
        server.shutdown()


async def _start_and_run() -> None:
    sandbox = await ContainerSandbox.start("docker", IMAGE, LIMITS, deadline_s=30.0)
    try:
        await sandbox.run(TRUE)
    finally:
        await sandbox.close()


@needs_client
def test_the_client_understands_every_limit(engine: _Engine) -> None:
    asyncio.run(_closed())
    asked, host = engine.created, engine.created["HostConfig"]
    assert (asked["Image"], asked["Entrypoint"], asked["Cmd"]) == (IMAGE, ["/bin/sh"], ["-c", FIRST_PROCESS])
    assert (host["NetworkMode"], host["CapDrop"], host["SecurityOpt"]) == ("none", ["ALL"], ["no-new-privileges"])
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (LIMITS.memory_bytes, LIMITS.memory_bytes, 26)
    ulimits = {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]}
    assert ulimits == {"fsize": LIMITS.file_bytes, "core": 0}


async def _closed() -> None:
    sandbox = await ContainerSandbox.start("docker", IMAGE, LIMITS, deadline_s=30.0)
    await sandbox.close()


@needs_client
def test_a_container_that_stopped_is_lost_though_the_clients_code_is_any_commands(engine: _Engine) -> None:
    refused = subprocess.run(["docker", "exec", "abc", "true"], capture_output=True, text=True, check=False)
    assert (refused.returncode, "is not running" in refused.stderr) == (1, True)
    with pytest.raises(SandboxLostError, match=r"the container is gone: .*is not running"):
        asyncio.run(_start_and_run())


@needs_client
def test_an_engine_that_is_down_loses_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent")
    with pytest.raises(SandboxLostError, match="docker cannot run repo/image:1"):
        asyncio.run(_start_and_run())
    with pytest.raises(SandboxLostError, match="the container is gone"):
        asyncio.run(ContainerSandbox("docker", "abc", LIMITS).run(TRUE))


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_first_process_of_a_container_cannot_be_ended_from_within(shell: str) -> None:
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this host does not allow a namespace of processes to this user")
    attack = "sleep 0.5; pkill -KILL sleep; for s in HUP INT QUIT TERM KILL; do kill -$s 1; done; sleep 0.5; echo stands"
    orphan = "(setsid sh -c 'sleep 0.1 & exec sleep 0.2' &)"
    zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    script = f'sh -c "{orphan}; {attack}; {zombies}; true" & {FIRST_PROCESS}'
    child = subprocess.Popen([*namespace, shell, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert child.stdout is not None
        assert [child.stdout.readline().strip() for _ in range(2)] == ["stands", "0"]
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
