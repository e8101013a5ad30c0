"""Containers are driven by command; a stand-in program records what it was told and plays the container program's answers."""

import asyncio
import stat
from pathlib import Path

import pytest

from libra_core.errors import SandboxLostError
from libra_core.types.trajectory import ToolStatus
from libra_core.workloads.sandbox import process
from libra_core.workloads.sandbox.container import ContainerSandbox
from libra_core.workloads.sandbox.types import CommandOutcome, SandboxCommand, SandboxResult
from support.sandboxes import LIMITS

_PROGRAM = """#!/bin/sh
echo "$@" >> {log}
verb=$1
case "$verb" in
  run) case "$*" in *slow*) sleep 30;; *missing*) echo "no such image" >&2; exit 125;; esac; echo id;;
  exec)
    if [ -e {lost} ]; then echo "Error response from daemon: container is not running" >&2; exit 1; fi
    shift; while [ "$1" != timeout ]; do shift; done; "$@"; exit $?;;
  inspect) if [ -e {lost} ]; then echo false; else echo true; fi;;
  rm) ;;
esac
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "docker"
    path.write_text(_PROGRAM.format(log=tmp_path / "log", lost=tmp_path / "lost"))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _run(program: Path, script: str, *, wall_s: float | None = None, stdin: str = "") -> SandboxResult:
    command = SandboxCommand(argv=("/bin/sh", "-c", script), wall_s=wall_s, environment={"A": "b"}, input=stdin)

    async def once() -> SandboxResult:
        sandbox = await ContainerSandbox.start(str(program), "repo/image:1", LIMITS, deadline_s=20.0)
        try:
            return await sandbox.run(command)
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
    assert (result.outcome, result.status) == (CommandOutcome.TIMEOUT, ToolStatus.TIMEOUT)


def test_a_command_may_bring_a_longer_deadline_than_the_policys(program: Path) -> None:
    _run(program, "true", wall_s=2 * LIMITS.wall_s)
    executed = (program.parent / "log").read_text().splitlines()[1]
    assert "timeout --signal=KILL 40.000 " in executed


def test_failing_command_is_an_error_of_the_policy(program: Path) -> None:
    assert _run(program, "exit 4").exit_code == 4


def test_a_command_reads_its_input_to_the_end(program: Path) -> None:
    assert _run(program, "cat; echo end", stdin="two\nlines\n").output == "two\nlines\nend\n"
    assert "exec --interactive --env" in (program.parent / "log").read_text()


@pytest.mark.parametrize("code", [1, 125, 126, 127, 137])
def test_a_code_that_the_client_uses_too_is_the_commands_while_the_container_runs(program: Path, code: int) -> None:
    result = _run(program, f"exit {code}")
    assert (result.outcome, result.exit_code, result.status) == (CommandOutcome.EXITED, code, ToolStatus.ERROR)
    assert (program.parent / "log").read_text().splitlines()[2].startswith("inspect --format {{.State.Running}} libra-")


def test_lost_container_is_not_the_policys_fault(program: Path) -> None:
    (program.parent / "lost").touch()
    with pytest.raises(SandboxLostError, match="gone: Error response from daemon: container is not running"):
        _run(program, "true")


def test_missing_image_is_said(program: Path) -> None:
    with pytest.raises(SandboxLostError, match="no such image"):
        asyncio.run(ContainerSandbox.start(str(program), "missing", LIMITS, deadline_s=20.0))


def test_a_start_past_its_deadline_names_the_setting(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.1)
    with pytest.raises(SandboxLostError, match=r"had not started slow after 0.2 s.*container_start_s"):
        asyncio.run(ContainerSandbox.start(str(program), "slow", LIMITS, deadline_s=0.2))


def test_a_cancelled_start_leaves_no_container(program: Path) -> None:
    async def cut_short() -> None:
        async with asyncio.timeout(0.5):
            await ContainerSandbox.start(str(program), "slow", LIMITS, deadline_s=20.0)

    with pytest.raises(TimeoutError):
        asyncio.run(cut_short())
    assert (program.parent / "log").read_text().splitlines()[-1].startswith("rm --force --volumes libra-")
