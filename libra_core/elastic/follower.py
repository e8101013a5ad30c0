"""A hybrid replica's end of the side channel, for one of its shards."""

import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from libra_core.elastic.buffers import Buffer, BufferPool
from libra_core.elastic.endpoint import Shard
from libra_core.elastic.handshake import Hello, greet
from libra_core.elastic.spec import Address, ElasticSpec
from libra_core.elastic.wire import SEGMENT_INTS, DType, Head, Kind, Wire
from libra_core.errors import DeadlineError, ElasticError

_CONNECT_S = 10.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message from the core; whoever has used the tensors releases it."""

    head: Head
    tensors: tuple[memoryview, ...] = ()
    buffer: Buffer | None = None

    def release(self) -> None:
        if self.buffer is not None:
            self.buffer.release()


class Follower:
    """One epoch of one shard. Used by one thread; a reader thread receives ahead of it, up to `queue_steps` messages.

    When it falls behind further, the reader stops reading, the core's queue fills and the core drops the link: memory is bounded
    on both sides.
    """

    def __init__(self, spec: ElasticSpec, shard: Shard, hello: Hello, addresses: Sequence[Address]) -> None:
        """Connect to every core rank that serves this shard, the leader first.

        Raises:
            ElasticError: one of them is not there, refuses, or is not the core of this run.
        """
        self._spec, self._shard, self._hello = spec, shard, hello
        self._gradients = BufferPool(shard.gradient_items * 4)
        self._arrived: queue.Queue[Received] = queue.Queue(maxsize=spec.queue_steps)
        self._closed: str | None = None
        self._wires: list[Wire] = []
        try:
            for address in addresses:
                self._wires.append(self._connect(address))
        except ElasticError:
            self.close("the connection to the core failed")
            for wire in self._wires[:1]:  # the leader's: there is no reader yet that would free it
                wire.free_incoming()
            raise
        self._leader = self._wires[0]
        name = f"follower-{hello.slot}"
        threading.Thread(target=self._read, name=name, daemon=True).start()  # failure: `receive` raises it

    @property
    def epoch(self) -> int:
        return self._hello.epoch

    @property
    def waiting(self) -> int:
        """Messages that have arrived and are not used yet."""
        return self._arrived.qsize()

    def snapshot(self, *, deadline_s: float) -> list[Received]:
        """The parts of one snapshot: the core takes one at the end of its next step.

        Raises:
            ElasticError: the core closed, or the parts are of different versions.
            DeadlineError: nothing came in time.
        """
        end_s = time.monotonic() + deadline_s
        parts = [self.receive(deadline_s=deadline_s)]
        for wire in self._wires[1:]:
            while not wire.readable(_POLL_S):
                if time.monotonic() > end_s:
                    raise DeadlineError(f"a part of the snapshot did not arrive within {deadline_s:.0f} s")
            parts.append(self._receive_from(wire))
        versions = {part.head.step for part in parts}
        if {part.head.kind for part in parts} != {Kind.SNAPSHOT} or len(versions) != 1:
            raise ElasticError(f"expected a snapshot of one version, got {[part.head.kind.name for part in parts]} of {versions}")
        return parts

    def receive(self, *, deadline_s: float) -> Received:
        """The leader's next message, in order.

        Raises:
            ElasticError: the connection ended and everything that came before is used.
            DeadlineError: nothing came in time.
        """
        end_s = time.monotonic() + deadline_s
        while True:
            try:
                return self._arrived.get(timeout=min(_POLL_S, max(0.01, end_s - time.monotonic())))
            except queue.Empty:
                if self._closed is not None and self._arrived.empty():
                    raise ElasticError(self._closed) from None
                if time.monotonic() > end_s:
                    raise DeadlineError(f"the core sent nothing within {deadline_s:.0f} s") from None

    def contribute(self, step: int, ints: tuple[int, ...], floats: tuple[float, ...], gradient: memoryview) -> None:
        """This shard's raw summed gradient of a step. Raises `ElasticError` when the core is gone."""
        sizes = ((DType.FLOAT32, len(gradient) // 4),)
        self._leader.send(self._head(Kind.CONTRIBUTION, step, ints=ints, floats=floats, tensors=sizes), (gradient,))

    def progress(self, version: int) -> None:
        """Tell which version is held; the core activates a replica that has caught up. Raises `ElasticError`."""
        self._leader.send(self._head(Kind.PROGRESS, version))

    def leave(self, version: int) -> None:
        """Ask to be left out after the step in work. Raises `ElasticError`."""
        self._leader.send(self._head(Kind.LEAVE, version))

    def close(self, reason: str = "closed by this side") -> None:
        """Ends the reader too."""
        self._closed = self._closed or reason
        for wire in self._wires:
            wire.close()
            wire.free_outgoing()
        for wire in self._wires[1:]:  # the leader's is the reader's to free
            wire.free_incoming()

    def _head(
        self,
        kind: Kind,
        step: int,
        *,
        ints: tuple[int, ...] = (),
        floats: tuple[float, ...] = (),
        tensors: tuple[tuple[DType, int], ...] = (),
    ) -> Head:
        hello = self._hello
        return Head(kind=kind, slot=hello.slot, epoch=hello.epoch, step=step, ints=ints, floats=floats, tensors=tensors)

    def _connect(self, address: Address) -> Wire:
        try:
            connected = socket.create_connection(address, timeout=_CONNECT_S)
        except OSError as error:
            raise ElasticError(f"no core listens on {address[0]}:{address[1]} ({error})") from error
        try:
            greet(connected, self._spec.secret, self._hello, deadline_s=_CONNECT_S)
        except ElasticError:
            connected.close()
            raise
        return Wire(connected, frame_deadline_s=self._spec.frame_s)

    def _read(self) -> None:
        try:
            while self._closed is None:
                if self._leader.readable(_POLL_S):
                    self._put(self._receive_from(self._leader))
        except Exception as error:  # whatever it is, `receive` must not wait for a reader that is gone
            self._closed = self._closed or str(error) or type(error).__name__
        self._leader.free_incoming()

    def _put(self, received: Received) -> None:
        while self._closed is None:
            try:
                self._arrived.put(received, timeout=_POLL_S)
            except queue.Full:
                continue
            return

    def _receive_from(self, wire: Wire) -> Received:
        place: list[Received] = []

        def destination(head: Head) -> Sequence[memoryview]:
            place.append(self._place(head))
            return place[0].tensors

        wire.receive(destination)
        return place[0]

    def _place(self, head: Head) -> Received:
        """Memory for a message, never more than this shard can need."""
        if head.kind is Kind.RESULT and head.tensors:
            buffer = self._gradients.take()
            return Received(head=head, tensors=(buffer.view,), buffer=buffer)
        if head.kind is Kind.SNAPSHOT:
            segments, values = head.tensor_bytes if len(head.tensors) == 2 else (0, 0)
            if not 0 < values <= self._shard.snapshot_items * 4 or segments > self._shard.snapshot_items * 8 * SEGMENT_INTS:
                raise ElasticError(f"the core sent a snapshot of {head.tensor_bytes} bytes, which this shard cannot hold")
            return Received(head=head, tensors=(memoryview(bytearray(segments)), memoryview(bytearray(values))))
        return Received(head=head)
