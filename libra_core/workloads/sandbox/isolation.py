"""The ways to isolate a command on this host, each as the program to start and the order it reads."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from libra_core.workloads.sandbox.types import SandboxLimits
from libra_core.workloads.sandbox.view import FileView

UNPRIVILEGED_ID: Final = 64999
"""User that commands run as when Libra itself runs as root; owns nothing on a usual host."""
_HERE: Final = Path(__file__).parent
_SUPERVISE_INSIDE: Final = "/run/supervise.py"


class Isolation(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
    UNSAFE = "unsafe"
    """Limits and a private folder, but the host's files and network are within reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlace:
    """Where one command runs."""

    home: Path
    """Holds `work`, `tmp`, `etc` and the mount point `root`."""
    view: FileView
    etc: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    argv: tuple[str, ...]
    order: bytes


def launch(
    isolation: Isolation,
    place: CommandPlace,
    argv: tuple[str, ...],
    stdin: str,
    settings: tuple[Mapping[str, str], SandboxLimits],
) -> Launch:
    """Program and order of one command; `settings` are its environment and its limits."""
    environment, limits = settings
    order = _order(place, argv, stdin, environment, limits)
    python = (sys.executable, "-I", "-S")
    match isolation:
        case Isolation.NAMESPACES:
            program = (*python, str(_HERE / "isolate.py"))
        case Isolation.BUBBLEWRAP:
            program = (*_bubblewrap(place, limits), place.view.python, "-I", "-S", _SUPERVISE_INSIDE)
        case Isolation.UNSAFE:
            program = (*python, str(_HERE / "supervise.py"))
            order |= _in_the_open(place, order["environment"])
    return Launch(argv=program, order=json.dumps(order).encode() + b"\n")


def _order(
    place: CommandPlace, argv: tuple[str, ...], stdin: str, environment: Mapping[str, str], limits: SandboxLimits
) -> dict[str, Any]:
    work, tmp = place.home / "work", place.home / "tmp"
    return {
        "argv": argv,
        "input": stdin,
        "folder": "/work",
        "environment": {"PATH": place.view.path, "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb", **environment},
        "limits": asdict(limits),
        "leave_root_for": UNPRIVILEGED_ID if os.geteuid() == 0 else None,
        "counts_processes": True,
        "disk_roots": ["/work", "/tmp"],
        "root": str(place.home / "root"),
        "read_only": [*place.view.read_only, *place.etc],
        "hidden": place.view.hidden,
        "writable": [(str(work), "/work"), (str(tmp), "/tmp")],
    }


def _in_the_open(place: CommandPlace, environment: Mapping[str, str]) -> dict[str, Any]:
    work, tmp = str(place.home / "work"), str(place.home / "tmp")
    return {
        "folder": work,
        "environment": {**environment, "HOME": tmp, "TMPDIR": tmp},
        "leave_root_for": None,
        "counts_processes": False,
        "disk_roots": [work, tmp],
    }


def _bubblewrap(place: CommandPlace, limits: SandboxLimits) -> list[str]:
    program = shutil.which("bwrap") or "bwrap"
    words = [program, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--new-session"]
    if os.geteuid() == 0:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    for folder in _parents([target for _, target in place.view.read_only]):
        words += ["--perms", "0755", "--dir", folder]  # bubblewrap makes missing parents for their owner alone
    for name in ("work", "tmp"):
        words += ["--bind", str(place.home / name), f"/{name}"]
    for source, target in (*place.view.read_only, *place.etc, (str(_HERE / "supervise.py"), _SUPERVISE_INSIDE)):
        if os.path.islink(source):
            words += ["--symlink", os.readlink(source), target]
        elif os.path.exists(source):
            words += ["--ro-bind", source, target]
    for target in place.view.hidden:
        if os.path.isdir(target):
            words += ["--size", "4096", "--perms", "0755", "--tmpfs", target, "--remount-ro", target]
    words += ["--dev", "/dev", "--size", str(limits.file_bytes), "--perms", "1777", "--tmpfs", "/dev/shm"]
    return [*words, "--proc", "/proc", "--remount-ro", "/", "--chdir", "/"]


def _parents(targets: list[str]) -> list[str]:
    """Every folder above `targets`, outermost first."""
    folders = {str(parent) for target in (*targets, "/etc/passwd", _SUPERVISE_INSIDE) for parent in Path(target).parents}
    return sorted(folders - {"/"})
