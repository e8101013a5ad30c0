"""What a policy may try, in real sandboxes. Each is contained, answered with the right status, and leaves nothing behind."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from libra_core.config.sandbox import SandboxConfig
from libra_core.errors import ResourceError, SandboxLostError
from libra_core.types.trajectory import ToolStatus
from libra_core.workloads.sandbox import local, process
from libra_core.workloads.sandbox.host import SandboxHost
from libra_core.workloads.sandbox.isolation import Isolation, Launch
from libra_core.workloads.sandbox.local import find_isolation
from libra_core.workloads.sandbox.types import CommandOutcome, SandboxCommand, SandboxResult
from libra_core.workloads.work_clock import WorkClock
from support.sandboxes import LIMITS, MIB, Trial, marked_processes

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def _usable(isolation: Isolation) -> bool:
    try:
        return asyncio.run(find_isolation(LIMITS, wanted=isolation)) is isolation
    except ResourceError:
        return False


@pytest.fixture(params=[Isolation.NAMESPACES, Isolation.BUBBLEWRAP], scope="module")
def isolation(request: pytest.FixtureRequest) -> Isolation:
    if not _usable(request.param):
        pytest.skip(f"this host cannot isolate by {request.param}: it lacks bwrap or user namespaces")
    return request.param


@pytest.fixture
def trial(isolation: Isolation) -> Trial:
    return Trial(isolation=isolation)


def _nothing_left(trial: Trial) -> None:
    assert trial.left == []
    assert not trial.folder_left


def test_exit_code_decides_and_output_is_kept(trial: Trial) -> None:
    good = trial.run("echo 0 errors, all tests passed; echo to stderr >&2")
    assert good.status is ToolStatus.OK
    assert good.output == "0 errors, all tests passed\nto stderr\n"
    bad = trial.run("echo all tests passed; exit 3")
    assert (bad.status, bad.exit_code) == (ToolStatus.ERROR, 3)
    _nothing_left(trial)


def test_processes_are_limited_before_any_bomb_is_tried(trial: Trial) -> None:
    script = """
import os, time
count = 0
try:
    while count < 100:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        count += 1
except OSError as error:
    print(count, error.strerror)
"""
    result = trial.run(f"exec {PYTHON} -c '{script}'", processes=16)
    count, reason = result.output.strip().split(" ", 1)
    assert 10 <= int(count) < 16
    assert reason == "Resource temporarily unavailable"
    _nothing_left(trial)


def test_fork_bomb_is_contained(trial: Trial) -> None:
    result = trial.run("bomb() { bomb | bomb & }; bomb; sleep 60", wall_s=2.0, processes=16)
    assert result.status in {ToolStatus.TIMEOUT, ToolStatus.ERROR}
    assert result.duration_s < 30.0
    _nothing_left(trial)


def test_endless_output_is_cut_and_ended(trial: Trial) -> None:
    result = trial.run("yes libra")
    assert (result.outcome, result.status) == (CommandOutcome.OUTPUT, ToolStatus.ERROR)
    assert len(result.output) == LIMITS.output_bytes
    _nothing_left(trial)


def test_ten_gigabytes_at_once_are_refused(trial: Trial) -> None:
    result = trial.run(f"{PYTHON} -c 'x = bytearray(10 * 2**30)'")
    assert result.status is ToolStatus.ERROR
    assert "MemoryError" in result.output
    _nothing_left(trial)


def test_memory_of_all_processes_together_is_limited(trial: Trial) -> None:
    hog = f"{PYTHON} -c 'import time; x = bytearray(60 * 2**20); time.sleep(30)'"
    result = trial.run(f"for i in 1 2 3 4; do {hog} & done; wait", memory_bytes=128 * MIB, wall_s=25.0)
    assert (result.outcome, result.status) == (CommandOutcome.MEMORY, ToolStatus.ERROR)
    _nothing_left(trial)


def test_processor_time_of_all_processes_together_is_limited(trial: Trial) -> None:
    spin = "while :; do :; done"
    result = trial.run(f"({spin}) & ({spin}) & wait", cpu_s=1.0, wall_s=60.0)
    assert (result.outcome, result.status) == (CommandOutcome.CPU, ToolStatus.ERROR)
    _nothing_left(trial)


def test_sleeping_past_the_deadline_is_a_timeout(trial: Trial) -> None:
    started_s = time.monotonic()
    result = trial.run("echo begun; sleep 300", wall_s=0.5)
    assert (result.status, result.output) == (ToolStatus.TIMEOUT, "begun\n")
    assert time.monotonic() - started_s < 60.0
    _nothing_left(trial)


def test_a_daemon_dies_with_the_command_that_left_it(trial: Trial) -> None:
    result = trial.run("(setsid nohup sleep 300 >/dev/null 2>&1 &) ; sleep 0.1; echo left")
    assert (result.status, result.output) == (ToolStatus.OK, "left\n")
    _nothing_left(trial)


def test_a_daemon_that_drops_its_environment_and_ignores_signals_dies_too(trial: Trial) -> None:
    daemon = f"env -i setsid sh -c 'trap \"\" HUP INT TERM; sleep 300; : {trial.mark}'"
    assert trial.run(f"( {daemon} >/dev/null 2>&1 & ) ; sleep 0.3; echo left").output == "left\n"
    _nothing_left(trial)


def test_nothing_runs_on_when_libra_itself_is_killed(isolation: Isolation, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    program = (
        "from support.sandboxes import Trial; from libra_core.workloads.sandbox.isolation import Isolation; "
        f"trial = Trial(isolation=Isolation('{isolation}'), mark='{mark}'); "
        "trial.run('setsid sleep 300 & echo up > up; sleep 300', wall_s=600.0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        _until(lambda: list(tmp_path.glob("*/work/up")), "the command to run")
        assert len(marked_processes(mark)) >= 3
    finally:
        child.kill()
        child.wait()
    _until(lambda: not marked_processes(mark), "its processes to end")


def _until(done: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + 60.0
    while not done():
        assert time.monotonic() < deadline_s, f"waited 60 s for {what}"
        time.sleep(0.05)


def test_a_daemon_that_holds_the_output_dies_too(trial: Trial) -> None:
    assert trial.run("setsid sleep 300 & echo left").status is ToolStatus.OK
    _nothing_left(trial)


def test_removing_everything_harms_nothing(trial: Trial, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    witness.write_text("here")
    result = trial.run("timeout 2 rm -rf --no-preserve-root / 2>/dev/null; test -x /bin/sh && echo standing")
    assert (result.status, result.output) == (ToolStatus.OK, "standing\n")
    assert witness.read_text() == "here"
    assert Path("/bin/sh").exists()
    _nothing_left(trial)


def test_files_of_the_host_cannot_be_read(trial: Trial) -> None:
    secret = Path.home() / ".libra-sandbox-test"
    secret.write_text("SECRET")
    try:
        result = trial.run(
            f"cat {secret} /proc/1/root{secret} /etc/shadow; ls -a {Path.home()}; ls {Path(__file__).parent}; true"
        )
    finally:
        secret.unlink()
    assert "SECRET" not in result.output
    assert "root:" not in result.output
    assert Path(__file__).name not in result.output
    _nothing_left(trial)


def test_network_cannot_be_reached(trial: Trial) -> None:
    connect = "import socket; s = socket.socket(); s.settimeout(3); s.connect(('1.1.1.1', 53))"
    result = trial.run(f'{PYTHON} -c "{connect}"')
    assert result.status is ToolStatus.ERROR
    assert "unreachable" in result.output
    _nothing_left(trial)


def test_servers_of_the_host_cannot_be_reached(trial: Trial) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = trial.run(f"{PYTHON} -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 3)\"")
    assert result.status is ToolStatus.ERROR
    assert "refused" in result.output
    _nothing_left(trial)


def test_a_link_out_of_the_folder_leads_nowhere(trial: Trial, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("SECRET")
    result = trial.run(f"ln -s {outside} out; cat out; echo changed > out; ln -s / all; ls all/home; true")
    assert "SECRET" not in result.output
    assert outside.read_text() == "SECRET"
    _nothing_left(trial)


def test_closing_follows_no_link(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    trial.run(f"ln -s {tmp_path}/kept link; mkdir locked; touch locked/file; chmod 000 locked")
    assert (tmp_path / "kept" / "file").read_text() == "kept"
    _nothing_left(trial)


def test_a_tree_deeper_than_a_path_can_be_long_is_removed(trial: Trial) -> None:
    nest = "import os\nfor _ in range(3000): os.mkdir('deep'); os.chdir('deep')\nopen('file', 'w').write('x')"
    trial.run(f'{PYTHON} -c "{nest}"')
    _nothing_left(trial)


def test_nothing_is_hidden_from_the_disk_limit_by_depth(trial: Trial) -> None:
    nest = "import os, time\nfor _ in range(3000): os.mkdir('deep'); os.chdir('deep')\ntime.sleep(30)"
    assert trial.run(f'{PYTHON} -c "{nest}"').outcome is CommandOutcome.DISK
    _nothing_left(trial)


def test_a_large_file_is_refused(trial: Trial) -> None:
    result = trial.run("dd if=/dev/zero of=big bs=1M count=64 2>&1; echo; wc -c < big")
    assert int(result.output.split()[-1]) <= LIMITS.file_bytes
    _nothing_left(trial)


def test_many_files_end_at_the_disk_limit(trial: Trial) -> None:
    script = "i=0; while :; do i=$((i+1)); head -c 4000000 /dev/zero > f$i || sleep 0.1; sleep 0.02; done"
    result = trial.run(script, wall_s=60.0)
    assert (result.outcome, result.status) == (CommandOutcome.DISK, ToolStatus.ERROR)
    _nothing_left(trial)


def test_no_right_can_be_won_back(trial: Trial) -> None:
    result = trial.run("unshare -U id; mount -t tmpfs none /mnt; su -c id; chown 0 . ; id -u; grep CapEff /proc/self/status")
    assert result.output.rstrip().endswith("0000000000000000")
    assert "\n1000\n" in result.output
    _nothing_left(trial)


def test_a_cancelled_call_leaves_no_process(trial: Trial) -> None:
    with pytest.raises(TimeoutError):
        trial.run("sleep 300", timeout_s=1.0)
    _nothing_left(trial)


def test_binary_output_and_a_signal_are_answered(trial: Trial) -> None:
    result = trial.run(r"printf '\377\376\000end'; kill -9 $$")
    assert (result.status, result.exit_code) == (ToolStatus.ERROR, -9)
    assert result.output.endswith("end")
    _nothing_left(trial)


def test_files_outlive_a_command_but_not_the_sandbox(isolation: Isolation) -> None:
    from libra_core.workloads.sandbox.local import LocalSandbox
    from libra_core.workloads.sandbox.view import host_view

    async def two_commands() -> tuple[SandboxResult, Path]:
        sandbox = LocalSandbox(isolation, host_view(), LIMITS, lambda folder: None)
        await sandbox.run(SandboxCommand(argv=("/bin/sh", "-c", "echo kept > /work/a; echo also > /tmp/b")))
        second = await sandbox.run(SandboxCommand(argv=("/bin/sh", "-c", "cat a /tmp/b -"), input="from the host\n"))
        await sandbox.close()
        return second, sandbox.home

    result, home = asyncio.run(two_commands())
    assert result.output == "kept\nalso\nfrom the host\n"
    assert not home.exists()


def test_a_sandbox_made_for_a_caller_who_has_gone_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begun = threading.Event()

    def slow(folder: Path) -> None:
        begun.set()
        time.sleep(0.3)
        (folder / "late").touch()

    async def cut_short() -> None:
        host = SandboxHost(SandboxConfig(open_at_once=1, unsafe_local=True))
        await host.isolation()
        opening = asyncio.create_task(host.open(slow))
        await asyncio.to_thread(begun.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with host.opened(lambda folder: None):  # the place is free again
            pass

    asyncio.run(cut_short())  # ends its threads too
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_waits_for_its_turn_has_its_whole_deadline_left(isolation: Isolation) -> None:
    async def two_at_once() -> tuple[list[SandboxResult], list[WorkClock]]:
        host = SandboxHost(SandboxConfig(commands_at_once=1, isolation=isolation))
        sleeping = SandboxCommand(argv=("/bin/sh", "-c", "sleep 1; echo done"))
        async with host.opened(lambda folder: None) as one, host.opened(lambda folder: None) as other:
            clocks = [WorkClock("t", work_s=30.0, queue_s=30.0) for _ in range(2)]
            runs = (clock.hold(sandbox.run(sleeping)) for clock, sandbox in zip(clocks, (one, other), strict=True))
            return await asyncio.gather(*runs), clocks

    results, clocks = asyncio.run(two_at_once())
    assert [result.output for result in results] == ["done\n"] * 2
    first, second = sorted(clock.waited_s for clock in clocks)
    assert first < 0.2
    assert second > 0.9
    assert all(clock.busy_s >= 1.0 for clock in clocks)


def test_a_supervisor_that_does_not_report_has_lost_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(*_: object) -> Launch:
        return Launch(argv=("/bin/sleep", "30"), order=b"")

    monkeypatch.setattr(local, "launch", hanging)
    monkeypatch.setattr(local, "_SLACK_S", 0.2)
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    with pytest.raises(SandboxLostError, match="without a report"):
        Trial(isolation=Isolation.UNSAFE).run("true", wall_s=0.1)


def test_a_host_that_isolates_nothing_is_refused_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> str | None:
        return None

    monkeypatch.setattr(shutil, "which", nowhere)
    with pytest.raises(ResourceError, match="unsafe_local"):
        asyncio.run(find_isolation(LIMITS, wanted=Isolation.BUBBLEWRAP))
    chosen = asyncio.run(find_isolation(LIMITS, wanted=Isolation.BUBBLEWRAP, unsafe_local=True))
    assert chosen is Isolation.UNSAFE


def test_without_isolation_limits_still_hold() -> None:
    trial = Trial(isolation=Isolation.UNSAFE)
    limited: list[tuple[Callable[[], SandboxResult], CommandOutcome]] = [
        (lambda: trial.run("sleep 300", wall_s=0.5), CommandOutcome.TIMEOUT),
        (lambda: trial.run("yes"), CommandOutcome.OUTPUT),
        (lambda: trial.run("for i in $(seq 40); do sleep 5 & done; wait", processes=8), CommandOutcome.PROCESSES),
        (lambda: trial.run("setsid sleep 300 & echo left"), CommandOutcome.EXITED),
    ]
    for attempt, outcome in limited:
        assert attempt().outcome is outcome
        _nothing_left(trial)
