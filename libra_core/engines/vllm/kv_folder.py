"""KV blocks in a folder that the engines of one host share. Imports no vllm.

    <root>/<layout>/v<version>/tp<degree>/<block>.<rank>

`block` is the chained hash of the tokens up to the block's end. One file holds one block of one rank, `[layers, heads,
bytes]` with the heads of that rank, so that an engine of another degree reads the heads it needs. A file appears whole or
not at all; whatever is missing, damaged or evicted is simply not there, and the reader computes it.
"""

import itertools
import os
import shutil
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_HEADER = struct.Struct("<8sIII")
"""Magic, CRC-32 of the payload, layers, heads."""
_MAGIC = b"LIBRAKV1"
_PARTIAL = ".partial"
Payload = NDArray[np.uint8]
"""`[layers, heads, bytes]`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAddress:
    """The files of one block: one per rank of the engine that saved it."""

    version: int
    degree: int
    name: str


class KvFolder:
    """Several processes write and read it at once, without locks: files are only ever renamed into place and removed."""

    def __init__(self, root: Path, layout: str, max_bytes: int) -> None:
        """`layout` names everything that must be equal for two engines to understand each other's blocks."""
        self._root = root
        self._base = root / layout
        self._max_bytes = max_bytes

    def longest(self, version: int, names: Sequence[str], degrees: Sequence[int]) -> tuple[int, int]:
        """Degree and number of leading blocks of the longest prefix that is there; the first degree wins a tie."""
        counts = [(self._prefix(version, degree, names), degree) for degree in degrees]
        count, degree = max(counts, key=lambda files: files[0], default=(0, 0))
        return degree, count

    def degrees(self, version: int) -> list[int]:
        """Of the engines that have saved something under that version."""
        files = [path.name for path in self._version(version).glob("tp*")]
        return sorted(int(name[2:]) for name in files if name[2:].isdigit())

    def write(self, address: BlockAddress, rank: int, payload: Payload, *, saved_ns: int) -> None:
        """`saved_ns` is when, in unix time; the lowest is evicted first. Raises `OSError` when there is no place."""
        path = self._path(address, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}{_PARTIAL}")
        layers, heads, _ = payload.shape
        data = np.ascontiguousarray(payload).reshape(-1)
        try:
            with partial.open("wb") as file:
                file.write(_HEADER.pack(_MAGIC, zlib.crc32(data.data), layers, heads))
                file.write(data.data)
            os.utime(partial, ns=(saved_ns, saved_ns))
            partial.rename(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise

    def read(self, address: BlockAddress, heads: range, total_heads: int) -> Payload | None:
        """`heads` of a block as `[layers, len(heads), bytes]`; None when a file is missing or damaged."""
        per_rank = total_heads // address.degree
        parts: list[Payload] = []
        for rank in range(heads.start // per_rank, (heads.stop - 1) // per_rank + 1):
            whole = _read_file(self._path(address, rank))
            if whole is None or whole.shape[1] != per_rank:
                return None
            first = rank * per_rank
            parts.append(whole[:, max(heads.start - first, 0) : heads.stop - first])
        if len({(part.shape[0], part.shape[2]) for part in parts}) != 1:
            return None
        return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def read_own(self, address: BlockAddress, rank: int) -> Payload | None:
        """What the same rank of an engine of the same degree has saved."""
        return _read_file(self._path(address, rank))

    def make_room(self, incoming_bytes: int) -> int:
        """Evict what was saved longest ago until so much fits; returns how much does. Engines that save at the same time may
        overshoot the bound until the next save."""
        room = min(incoming_bytes, self._max_bytes)
        files = sorted(self._files())
        held = sum(size for _, size, _ in files)
        for _, size, path in files:
            if held + room <= self._max_bytes:
                break
            with suppress(OSError):
                os.unlink(path)
            held -= size
        return room

    def held_bytes(self) -> int:
        return sum(size for _, size, _ in self._files())

    def drop_before(self, version: int) -> None:
        """KV of an older policy is of no more use."""
        for path in self._base.glob("v*"):
            if path.name[1:].isdigit() and int(path.name[1:]) < version:
                shutil.rmtree(path, ignore_errors=True)

    def _prefix(self, version: int, degree: int, names: Sequence[str]) -> int:
        folder = self._version(version) / f"tp{degree}"
        there = (all((folder / f"{name}.{rank}").exists() for rank in range(degree)) for name in names)
        return sum(1 for _ in itertools.takewhile(bool, there))

    def _files(self) -> list[tuple[int, int, str]]:
        """Age, size and path of every file; those that vanish meanwhile are left out."""
        files: list[tuple[int, int, str]] = []
        for folder, _, names in os.walk(self._root):
            for name in names:
                path = f"{folder}/{name}"
                with suppress(OSError):
                    stat = os.stat(path)
                    files.append((stat.st_mtime_ns, stat.st_size, path))
        return files

    def _version(self, version: int) -> Path:
        return self._base / f"v{version:06d}"

    def _path(self, address: BlockAddress, rank: int) -> Path:
        return self._version(address.version) / f"tp{address.degree}" / f"{address.name}.{rank}"


def _read_file(path: Path) -> Payload | None:
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError:
        return None
    if len(data) <= _HEADER.size:
        return None
    magic, crc, layers, heads = _HEADER.unpack(data[: _HEADER.size].tobytes())
    body = data[_HEADER.size :]
    whole = magic == _MAGIC and layers > 0 and heads > 0 and len(body) % (layers * heads) == 0
    if not whole or zlib.crc32(body.data) != crc:
        return None
    return body.reshape(layers, heads, -1)
