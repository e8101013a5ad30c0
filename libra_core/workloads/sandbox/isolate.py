"""Makes the sandbox out of namespaces, then becomes its process 1: own processes, mounts, network, users and host name.

A script of the standard library alone. Without root the user namespace comes first and grants the mounts; with root the mounts
come first, because a user without rights may not even read the interpreter's folder.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from supervise import CLONE_NEWUSER, check, libc, map_identity, read_order, supervise

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWPID, _CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_SYS_PIVOT_ROOT, _SYS_MOUNT_SETATTR = {"x86_64": (155, 442), "aarch64": (41, 442)}.get(os.uname().machine, (0, 442))
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 0x1, 0x2, 0x4
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_DEVICES = ("null", "zero", "full", "random", "urandom")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    check(libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()), f"mount {target}")


def enter_namespaces() -> None:
    own = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
    uid, gid = os.geteuid(), os.getegid()
    if uid:
        check(libc.unshare(own | CLONE_NEWUSER), "namespaces")
        map_identity(uid, gid)
    else:
        check(libc.unshare(own), "namespaces")
    mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    socket.sethostname("sandbox")
    _loopback_up()


def _loopback_up() -> None:
    """Programs that talk to themselves work; nothing else can be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def bind(source: str, target: str, *, writable: bool) -> None:
    """A link stays a link; a source that does not exist is left out."""
    if os.path.islink(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif os.path.exists(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w"):
            pass
    else:
        return
    mount(source, target, flags=_MS_BIND | _MS_REC)
    _restrict(target, _ATTR_NOSUID | _ATTR_NODEV | (0 if writable else _ATTR_RDONLY))


def _restrict(target: str, attributes: int) -> None:
    """With everything mounted below it."""
    request = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    arguments = (ctypes.c_int(_AT_FDCWD), target.encode(), ctypes.c_uint(_AT_RECURSIVE), ctypes.byref(request))
    check(libc.syscall(_SYS_MOUNT_SETATTR, *arguments, ctypes.c_size_t(32)), f"restrict {target}")


def build_root(order: dict[str, Any]) -> str:
    """A small file system in memory with only what the order names; returns where it is mounted."""
    root: str = order["root"]
    mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for source, target in order["writable"]:
        bind(source, root + target, writable=True)
    for source, target in order["read_only"]:
        bind(source, root + target, writable=False)
    for target in order["hidden"]:
        if os.path.isdir(root + target):
            mount("tmpfs", root + target, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_RDONLY, "size=4k,mode=755")
    _build_devices(f"{root}/dev", order["limits"]["file_bytes"])
    os.makedirs(f"{root}/proc", exist_ok=True)
    return root


def _build_devices(folder: str, shared_bytes: int) -> None:
    os.makedirs(folder)
    for name in _DEVICES:
        with open(f"{folder}/{name}", "w"):
            pass
        mount(f"/dev/{name}", f"{folder}/{name}", flags=_MS_BIND)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        os.symlink(f"/proc/self/fd/{number}", f"{folder}/{name}")
    os.symlink("/proc/self/fd", f"{folder}/fd")
    os.makedirs(f"{folder}/shm")
    mount("tmpfs", f"{folder}/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={shared_bytes},mode=1777")


def move_into(root: str) -> None:
    """From here on the host's files cannot be named any more."""
    mount("proc", f"{root}/proc", "proc", _MS_NOSUID | _MS_NODEV | 8)
    mount("none", root, flags=_MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, data="size=1m,mode=755")
    os.chdir(root)
    check(libc.syscall(_SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", _MNT_DETACH), "umount of the host")
    os.chdir("/")


def run() -> NoReturn:
    order = read_order()
    enter_namespaces()
    root = build_root(order)
    child = os.fork()
    if child:
        os.close(0)
        os.close(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _, status = os.waitpid(child, 0)
        os._exit(0 if os.waitstatus_to_exitcode(status) == 0 else 1)
    try:
        move_into(root)
        supervise(order)
    except BaseException as error:  # process 1 must not unwind into the code of its parent
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(1)


if __name__ == "__main__":
    try:
        run()
    except Exception as error:  # the host reads this sentence as "sandbox lost"
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        sys.exit(1)
