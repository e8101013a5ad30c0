"""The core's end of the connection to one shard of a hybrid replica."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libra_core.elastic.handshake import Hello
from libra_core.elastic.wire import Head, Kind, Wire

logger = logging.getLogger(__name__)

_POLL_S = 0.5
"""How often an idle reader looks whether its link was closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One shard's raw summed gradient of a step, complete. The view is valid until the link is told to expect another step."""

    step: int
    ints: tuple[int, ...]
    floats: tuple[float, ...]
    gradient: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message in a link's queue; `done` is called once it is sent or dropped."""

    head: Head
    tensors: Sequence[memoryview]
    done: Callable[[], None]


class Link:
    """One epoch of one slot. All state is guarded by `changed`, which the endpoint shares among its links.

    The reader thread receives into `_incoming` only while a contribution is expected and none is there, so the training thread
    may read it until it says `expect` again. The writer thread consumes the queue. `close` ends both.
    """

    def __init__(self, wire: Wire, hello: Hello, changed: threading.Condition, gradient_bytes: int) -> None:
        self.slot, self.epoch = hello.slot, hello.epoch
        self.changed = changed
        self.contribution: Contribution | None = None
        self.progress = -1
        """Version that the replica holds."""
        self.leaving = False
        self.has_snapshot = False
        self.closed: str | None = None
        """Why, once it is."""
        self.ignored = 0
        """Contributions that were stale, repeated, early, or of another step."""
        self.unsent = 0
        self._expected: int | None = None
        self._finishing = False
        self._incoming = bytearray(gradient_bytes)
        self._wire = wire
        self._queue: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()

    def start(self) -> None:
        name = f"hybrid-{self.slot}-epoch-{self.epoch}"
        threading.Thread(target=self._read, name=f"{name}-reader", daemon=True).start()  # failure: `closed`
        threading.Thread(target=self._write, name=f"{name}-writer", daemon=True).start()  # failure: `closed`

    def expect(self, step: int) -> None:
        """Accept a contribution to this step, and only to it."""
        with self.changed:
            self._expected, self.contribution = step, None

    def post(self, outgoing: Outgoing) -> None:
        """Queue a message; on a closed link it is dropped."""
        with self.changed:
            if self.closed is None:
                self.unsent += 1
                self._queue.put(outgoing)
                return
        outgoing.done()

    def finish(self) -> None:
        """Let the writer send what is queued, then say goodbye and close, whoever closes first."""
        with self.changed:
            self._finishing = True
        self.post(Outgoing(head=Head(kind=Kind.BYE, slot=self.slot, epoch=self.epoch, step=0), tensors=(), done=lambda: None))
        self._queue.put(None)

    def close(self, reason: str) -> None:
        """Only the first reason is kept."""
        with self.changed:
            if self.closed is not None:
                return
            self.closed = "left" if self._finishing else reason
            self.changed.notify_all()
        logger.info("hybrid replica %d, epoch %d: %s", self.slot, self.epoch, self.closed)
        self._wire.close()
        self._queue.put(None)

    def _read(self) -> None:
        try:
            while self.closed is None:
                if self._wire.readable(_POLL_S):
                    head, kept = self._wire.receive(self._destination)
                    self._take_in(head, kept=kept)
        except Exception as error:  # whatever it is, the core must not wait for a link that nobody reads
            self.close(str(error) or type(error).__name__)
        self._wire.free_incoming()

    def _destination(self, head: Head) -> Sequence[memoryview] | None:
        """Called when a head is in: only the contribution that is waited for gets a place."""
        if head.kind is not Kind.CONTRIBUTION:
            return ()
        with self.changed:
            wanted = head.slot == self.slot and head.epoch == self.epoch and head.step == self._expected
            if wanted and self.contribution is None:
                return (memoryview(self._incoming),)
            self.ignored += 1
        return None

    def _take_in(self, head: Head, *, kept: bool) -> None:
        with self.changed:
            if (head.slot, head.epoch) != (self.slot, self.epoch):
                return
            if head.kind is Kind.CONTRIBUTION and kept and head.step == self._expected:
                view = memoryview(self._incoming)
                self.contribution = Contribution(step=head.step, ints=head.ints, floats=head.floats, gradient=view)
            elif head.kind is Kind.PROGRESS:
                self.progress = max(self.progress, head.step)
            elif head.kind is Kind.LEAVE:
                self.leaving = True
            self.changed.notify_all()

    def _write(self) -> None:
        while (outgoing := self._queue.get()) is not None:  # unbounded: `close` and `finish` end it
            try:
                if self.closed is None:
                    self._wire.send(outgoing.head, outgoing.tensors)
            except Exception as error:
                self.close(str(error) or type(error).__name__)
            outgoing.done()
            with self.changed:
                self.unsent -= 1
        self.close("left")
        self._drop_queue()
        self._wire.free_outgoing()

    def _drop_queue(self) -> None:
        """Nothing is queued on a closed link, so this empties it for good."""
        while True:
            try:
                outgoing = self._queue.get_nowait()
            except queue.Empty:
                return
            if outgoing is not None:
                outgoing.done()
