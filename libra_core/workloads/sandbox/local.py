"""Sandboxes on this host: a folder per trajectory, fresh namespaces per command."""

import asyncio
import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from libra_core.errors import ResourceError, SandboxLostError
from libra_core.workloads.sandbox.isolation import UNPRIVILEGED_ID, CommandPlace, Isolation, launch
from libra_core.workloads.sandbox.process import GRACE_S, Conversation, Program, converse
from libra_core.workloads.sandbox.types import CommandOutcome, SandboxCommand, SandboxLimits, SandboxResult
from libra_core.workloads.sandbox.view import FileView, host_view, write_etc
from libra_core.workloads.work_clock import queued

logger = logging.getLogger(__name__)

_REMOVE_S: Final = 120.0
_SLACK_S: Final = 10.0
"""Beyond the command's own deadline, for starting and ending the sandbox on a busy host."""
LOST_AFTER_S: Final = _SLACK_S + 2 * GRACE_S
"""Beyond the command's own deadline: by then it is known whether the sandbox reports at all."""
_PROBE: Final = SandboxCommand(argv=("/bin/sh", "-c", "echo ready"))


class LocalSandbox:
    """Implements `types.Sandbox`. Between commands it is a folder and nothing else: no process, no thread."""

    def __init__(self, isolation: Isolation, view: FileView, limits: SandboxLimits, prepare: Callable[[Path], None]) -> None:
        """`prepare` fills the working folder; blocking, so call this from a thread."""
        self._isolation = isolation
        self._limits = limits
        home = Path(tempfile.mkdtemp(prefix="libra-sandbox-"))
        try:
            for name in ("work", "tmp", "root"):
                (home / name).mkdir()
            prepare(home / "work")
            self._place = CommandPlace(home=home, view=view, etc=write_etc(home / "etc"))
            if os.geteuid() == 0:
                _give_away(home)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    @property
    def home(self) -> Path:
        return self._place.home

    async def run(self, command: SandboxCommand) -> SandboxResult:
        """Raises `SandboxLostError` when the sandbox could not be made or did not report."""
        limits = self._limits
        if command.wall_s is not None:
            limits = replace(limits, wall_s=command.wall_s)
        start = launch(self._isolation, self._place, command.argv, command.input, (command.environment, limits))
        started_s = time.monotonic()
        try:
            said = await converse(
                Program(argv=start.argv, environment={"PATH": os.defpath}),
                order=start.order,
                output_bytes=limits.output_bytes,
                deadline_s=limits.wall_s + _SLACK_S,
            )
        except OSError as error:
            raise SandboxLostError(f"the sandbox cannot start: {error}") from None
        return _result(said, time.monotonic() - started_s)

    async def close(self) -> None:
        """The folder goes in any case; time until it has is a wait for the host, not the work's own."""
        removal = asyncio.get_running_loop().run_in_executor(None, self.remove)  # failure: raised below
        with queued("rollout.tool_threads"):
            await asyncio.shield(removal)

    def remove(self) -> None:
        """What `close` does, blocking."""
        _remove(self._place.home)


def _result(said: Conversation, duration_s: float) -> SandboxResult:
    outcome, exit_code = _ending(said)
    output = said.output.decode("utf-8", errors="replace")
    return SandboxResult(outcome=outcome, exit_code=exit_code, output=output, duration_s=duration_s)


def _ending(said: Conversation) -> tuple[CommandOutcome, int | None]:
    """A command that passes its deadline is reported by the supervisor; without a report nothing is known about the command."""
    if said.over_output:
        return CommandOutcome.OUTPUT, None
    try:
        report: dict[str, Any] = json.loads(said.report.splitlines()[-1])
        outcome = CommandOutcome(report["reason"])
    except (ValueError, KeyError, IndexError, TypeError):
        message = said.report.decode("utf-8", errors="replace").strip()[-300:] or "nothing"
        late = f", {_SLACK_S:g} s after the command's deadline" if said.timed_out else ""
        raise SandboxLostError(
            f"the sandbox ended without a report (exit code {said.exit_code}){late}; it said: {message}"
        ) from None
    return outcome, report["exit_code"]


def _give_away(home: Path) -> None:
    """Commands run as a user without rights, who must own its folders; links are owned, never followed."""
    for name in ("work", "tmp"):
        for folder, folders, files in os.walk(home / name):
            os.chown(folder, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
            for entry in (*folders, *files):
                os.chown(f"{folder}/{entry}", UNPRIVILEGED_ID, UNPRIVILEGED_ID, follow_symlinks=False)
    home.chmod(0o711)


def _remove(home: Path) -> None:
    """By the system's programs: they take trees deeper than Python's recursion and than a path may be long, and follow no link.

    Folders that the command made unreadable are opened for a second try.
    """
    for program in (("rm", "-rf"), ("chmod", "-R", "u+rwx"), ("rm", "-rf")):
        if not home.exists():
            return
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([*program, "--", str(home)], stderr=subprocess.DEVNULL, check=False, timeout=_REMOVE_S)
    if home.exists():
        logger.warning("%s could not be removed", home)


async def find_isolation(limits: SandboxLimits, *, wanted: str = "auto", unsafe_local: bool = False) -> Isolation:
    """The strongest isolation that this host allows, tried by running a command in it.

    Raises:
        ResourceError: when none works and `unsafe_local` is not set, with what each one said.
    """
    candidates = [Isolation.BUBBLEWRAP, Isolation.NAMESPACES] if wanted == "auto" else [Isolation(wanted)]
    said: list[str] = []
    for isolation in candidates:
        if isolation is Isolation.BUBBLEWRAP and shutil.which("bwrap") is None:
            said.append("bubblewrap: bwrap is not installed")
            continue
        if (complaint := await _complaint(isolation, limits)) is None:
            return isolation
        said.append(f"{isolation}: {complaint}")
    if unsafe_local:
        logger.warning("commands run without isolation (workload.sandbox.unsafe_local): %s", "; ".join(said))
        return Isolation.UNSAFE
    raise ResourceError(
        f"this host cannot isolate commands ({'; '.join(said)}); install bubblewrap, allow user namespaces or run as root with "
        "CAP_SYS_ADMIN; workload.sandbox.unsafe_local = true runs them unprotected"
    )


async def _complaint(isolation: Isolation, limits: SandboxLimits) -> str | None:
    try:
        sandbox = await asyncio.to_thread(LocalSandbox, isolation, host_view(), limits, lambda folder: None)
        try:
            result = await sandbox.run(_PROBE)
        finally:
            await sandbox.close()
    except (SandboxLostError, OSError) as error:
        return str(error)
    return None if result.exit_code == 0 and result.output == "ready\n" else f"a first command ended with {result.note}"
