"""Containers are driven by command; a stand-in program records what it was told and plays the container program's answers."""

import asyncio
import stat
from pathlib import Path

import pytest

from libra_core.errors import SandboxLostError
from libra_core.types.trajectory import ToolStatus
from libra_core.workloads.sandbox.container import ContainerSandbox
from libra_core.workloads.sandbox.types import Outcome, SandboxCommand, SandboxResult
from support.sandboxes import LIMITS

_PROGRAM = """#!/bin/sh
echo "$@" >> {log}
verb=$1
case "$verb" in
  run) case "$*" in *slow*) sleep 30;; *missing*) echo "no such image" >&2; exit 125;; esac; echo id;;
  exec) shift; while [ "$1" != timeout ]; do shift; done; exec "$@";;
  rm) ;;
esac
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "docker"
    path.write_text(_PROGRAM.format(log=tmp_path / "log"))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _run(program: Path, script: str, *, wall_s: float | None = None) -> SandboxResult:
    async def once() -> SandboxResult:
        sandbox = await ContainerSandbox.start(str(program), "repo/image:1", LIMITS)
        try:
            return await sandbox.run(SandboxCommand(argv=("/bin/sh", "-c", script), wall_s=wall_s, environment={"A": "b"}))
        finally:
            await sandbox.close()

    return asyncio.run(once())


def test_container_has_no_network_no_rights_and_all_limits(program: Path) -> None:
    result = _run(program, "echo out; echo err >&2")
    assert (result.status, result.output) == (ToolStatus.OK, "out\nerr\n")
    started, executed, removed = (program.parent / "log").read_text().splitlines()
    for words in (
        "--network none",
        "--cap-drop ALL",
        "no-new-privileges",
        "--pids-limit 26",
        "--memory 268435456",
        "repo/image:1",
    ):
        assert words in started
    assert "--env A=b libra-" in executed
    assert removed.startswith("rm --force --volumes libra-")


def test_deadline_inside_the_container_is_a_timeout(program: Path) -> None:
    result = _run(program, "sleep 30", wall_s=0.3)
    assert (result.outcome, result.status) == (Outcome.TIMEOUT, ToolStatus.TIMEOUT)


def test_a_command_may_bring_a_longer_deadline_than_the_policys(program: Path) -> None:
    _run(program, "true", wall_s=2 * LIMITS.wall_s)
    executed = (program.parent / "log").read_text().splitlines()[1]
    assert "timeout --signal=KILL 40.000 " in executed


def test_failing_command_is_an_error_of_the_policy(program: Path) -> None:
    assert _run(program, "exit 4").exit_code == 4


def test_lost_container_is_not_the_policys_fault(program: Path) -> None:
    with pytest.raises(SandboxLostError, match="gone"):
        _run(program, "exit 125")


def test_missing_image_is_said(program: Path) -> None:
    with pytest.raises(SandboxLostError, match="no such image"):
        asyncio.run(ContainerSandbox.start(str(program), "missing", LIMITS))


def test_a_cancelled_start_leaves_no_container(program: Path) -> None:
    async def cut_short() -> None:
        async with asyncio.timeout(0.5):
            await ContainerSandbox.start(str(program), "slow", LIMITS)

    with pytest.raises(TimeoutError):
        asyncio.run(cut_short())
    assert (program.parent / "log").read_text().splitlines()[-1].startswith("rm --force --volumes libra-")
