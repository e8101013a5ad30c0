"""Which files of the host a sandbox shows: the system's programs and the interpreter, none of anybody's data."""

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SYSTEM: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ssl",
    "/etc/localtime",
)
_ETC: Final = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/tmp:/bin/sh\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """Read-only paths, and folders that appear empty."""

    read_only: tuple[tuple[str, str], ...]
    """Pairs of source on the host and target in the sandbox."""
    hidden: tuple[str, ...]
    python: str
    path: str
    """Search path of programs."""


def host_view() -> FileView:
    """Installed packages are hidden: the sources that a task has changed lie there unchanged."""
    prefix = sys.base_prefix
    shown = [(path, path) for path in _SYSTEM]
    if not prefix.startswith("/usr"):
        shown.append((prefix, prefix))
    library = sysconfig.get_path("stdlib", vars={"installed_base": prefix, "base": prefix})
    hidden = [f"{library}/{name}" for name in ("site-packages", "dist-packages", "ensurepip/_bundled")]
    for folder in (Path("/usr/lib"), Path("/usr/local/lib")):
        hidden += [str(path) for name in ("site-packages", "dist-packages") for path in folder.glob(f"python3*/{name}")]
    program = f"{prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return FileView(
        read_only=tuple(shown),
        hidden=tuple(sorted(set(hidden))),
        python=program if os.path.exists(program) else os.path.realpath(sys.executable),
        path=f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin",
    )


def write_etc(folder: Path) -> tuple[tuple[str, str], ...]:
    """The few files of /etc that programs look for, written into `folder`; returns them as read-only pairs."""
    folder.mkdir()
    for name, text in _ETC.items():
        (folder / name).write_text(text, encoding="ascii")
    return tuple((str(folder / name), f"/etc/{name}") for name in _ETC)
