"""Messages between the core and hybrid replicas: a typed head, then raw tensors. Nothing is unpickled from the wire.

```
magic 4s | kind u8 | slot u16 | epoch u32 | step i64 | counts 3 x u8 | ints i64… | floats f64… | (dtype, count u64)… | raw bytes…
```
All little-endian. A message exists for its receiver only once its last byte is in.
"""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from libra_core.errors import ElasticError

MAGIC = b"LBE1"
SEGMENT_INTS = 3
"""Parameter, start, items: a row of a snapshot's first tensor, which says where the items of its second belong."""
_PREFIX = struct.Struct("<4sBHIqBBB")
_TENSOR = struct.Struct("<BQ")
_ITEM_BYTES = {0: 4, 1: 8}
_MOST_TENSORS = 4
_MOST_ITEMS = 1 << 40
_SCRATCH = 1 << 16
_LEAST_TIMEOUT_S = 1e-3
"""0 would make a socket non-blocking."""


class Kind(IntEnum):
    SNAPSHOT = 1
    """Core to replica. step: policy version."""
    RESULT = 2
    """Core to replica: the gradient of a finished step."""
    CONTRIBUTION = 3
    """Replica to core: its raw gradient of a step."""
    PROGRESS = 4
    """Replica to core. step: the version that it holds."""
    LEAVE = 5
    BYE = 6
    """Core to replica: no more messages follow."""


class DType(IntEnum):
    FLOAT32 = 0
    INT64 = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Everything but the tensors. The meaning of `ints` and `floats` is the sender's and receiver's, by kind."""

    kind: Kind
    slot: int
    epoch: int
    step: int
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    tensors: tuple[tuple[DType, int], ...] = ()
    """dtype and number of elements of each."""

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        return tuple(count * _ITEM_BYTES[dtype] for dtype, count in self.tensors)

    def encode(self) -> bytes:
        counts = len(self.ints), len(self.floats), len(self.tensors)
        prefix = _PREFIX.pack(MAGIC, self.kind, self.slot, self.epoch, self.step, *counts)
        numbers = struct.pack(f"<{counts[0]}q{counts[1]}d", *self.ints, *self.floats)
        return prefix + numbers + b"".join(_TENSOR.pack(dtype, count) for dtype, count in self.tensors)


Destination = Callable[[Head], Sequence[memoryview] | None]
"""Where the tensors of a message go, one byte view each; None: read them and throw them away."""


class Wire:
    """One connection. One thread may send while another receives; `close` from any thread ends both with `ElasticError`."""

    def __init__(self, connected: socket.socket, *, frame_deadline_s: float) -> None:
        """`frame_deadline_s`: how long a message may take from its first byte to its last."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._incoming = connected
        self._outgoing = connected.dup()  # timeouts belong to a socket object, and the two directions have their own
        self._incoming.settimeout(frame_deadline_s)
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._frame_deadline_s = frame_deadline_s

    def send(self, head: Head, tensors: Sequence[memoryview] = ()) -> None:
        """Raises `ElasticError` when the peer is gone or does not take the whole message in time."""
        assert tuple(len(tensor) for tensor in tensors) == head.tensor_bytes, "tensors do not have the size that the head states"
        end_s = time.monotonic() + self._frame_deadline_s
        try:
            for part in (head.encode(), *tensors):
                self._outgoing.settimeout(max(_LEAST_TIMEOUT_S, end_s - time.monotonic()))
                self._outgoing.sendall(part)
        except OSError as error:
            raise ElasticError(
                f"{head.kind.name.lower()} of step {head.step} could not be sent: {error or 'peer gone'}"
            ) from error

    def readable(self, seconds: float) -> bool:
        """Whether a message, or the end of the connection, comes within so many seconds."""
        return bool(self._poll.poll(seconds * 1000))

    def receive(self, destination: Destination) -> tuple[Head, bool]:
        """The next message, and whether its tensors were kept.

        Raises:
            ElasticError: the peer closed, sent something else than a message, or stopped in the middle of one.
        """
        end_s = time.monotonic() + self._frame_deadline_s
        head = self._receive_head(end_s)
        views = destination(head)
        if views is None:
            self._skip(sum(head.tensor_bytes), end_s)
            return head, False
        if tuple(len(view) for view in views) != head.tensor_bytes:
            raise ElasticError(
                f"{head.kind.name.lower()} of step {head.step} has tensors of {head.tensor_bytes} bytes, "
                f"expected {tuple(len(view) for view in views)}: the two sides hold different models or layouts"
            )
        for view in views:
            self._fill(view, end_s)
        return head, True

    def close(self) -> None:
        """End both directions and wake whoever waits. The descriptors stay until each thread has let go of its own."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._incoming.shutdown(socket.SHUT_RDWR)

    def free_incoming(self) -> None:
        """By the thread that receives, as its last call."""
        self._incoming.close()

    def free_outgoing(self) -> None:
        """By the thread that sends, as its last call."""
        self._outgoing.close()

    def _receive_head(self, end_s: float) -> Head:
        magic, kind, slot, epoch, step, *counts = _PREFIX.unpack(self._take(_PREFIX.size, end_s))
        num_ints, num_floats, num_tensors = counts
        if magic != MAGIC or kind not in set(Kind) or num_tensors > _MOST_TENSORS:
            raise ElasticError(f"the peer does not speak this protocol: message begins with {magic!r}, kind {kind}")
        layout = struct.Struct(f"<{num_ints}q{num_floats}d")
        numbers = layout.unpack(self._take(layout.size, end_s))
        tensors = [_TENSOR.unpack(self._take(_TENSOR.size, end_s)) for _ in range(num_tensors)]
        if any(dtype not in _ITEM_BYTES or count > _MOST_ITEMS for dtype, count in tensors):
            raise ElasticError(f"the peer announces tensors that cannot be: {tensors}")
        return Head(
            kind=Kind(kind),
            slot=slot,
            epoch=epoch,
            step=step,
            ints=numbers[:num_ints],
            floats=numbers[num_ints:],
            tensors=tuple((DType(dtype), count) for dtype, count in tensors),
        )

    def _take(self, size: int, end_s: float) -> bytes:
        taken = bytearray(size)
        self._fill(memoryview(taken), end_s)
        return bytes(taken)

    def _skip(self, size: int, end_s: float) -> None:
        scratch = memoryview(bytearray(min(size, _SCRATCH)))
        while size:
            part = scratch[: min(size, len(scratch))]
            self._fill(part, end_s)
            size -= len(part)

    def _fill(self, view: memoryview, end_s: float) -> None:
        at = 0
        while at < len(view):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise ElasticError(f"a message stopped in the middle for {self._frame_deadline_s:.1f} s")
            self._incoming.settimeout(left_s)
            try:
                count = self._incoming.recv_into(view[at:])
            except TimeoutError:
                continue
            except OSError as error:
                raise ElasticError(f"the connection broke: {error}") from error
            if count == 0:
                raise ElasticError("the peer closed the connection")
            at += count
