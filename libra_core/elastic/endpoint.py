"""The core's end of the side channel on one rank: lets replicas in, collects contributions, publishes results and snapshots.

The training thread calls; everything that waits for the network happens in threads of the links, except `collect`, which waits
up to one deadline for contributions of active replicas.
"""

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from libra_core.elastic.agreement import Vote
from libra_core.elastic.buffers import Buffer, BufferPool
from libra_core.elastic.handshake import Hello, admit
from libra_core.elastic.link import Contribution, Link, Outgoing
from libra_core.elastic.spec import Address, ElasticSpec
from libra_core.elastic.wire import DType, Head, Kind, Wire
from libra_core.errors import ElasticError, ResourceError

logger = logging.getLogger(__name__)

_HANDSHAKE_S = 5.0
_MOST_HANDSHAKES = 8
_KEPT_REFUSALS = 64
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What this rank holds, in elements of float32."""

    tp_rank: int
    pp_rank: int
    fingerprint: bytes
    gradient_items: int
    snapshot_items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """Slots by what this rank is to them."""

    leads: frozenset[int]
    """It takes their contributions and publishes to them."""
    snapshots: frozenset[int]
    """It sends them a part of the snapshot, or all of it."""


class CoreEndpoint:
    """Owned by the training thread. Shut down by `close`: the listener first, then every link.

    `changed` guards the table of links and every link's state.
    """

    def __init__(self, spec: ElasticSpec, shard: Shard, serves: Serves) -> None:
        """Listen on any free port.

        Raises:
            ResourceError: the host is no address of this machine.
        """
        self._spec, self._shard, self._serves = spec, shard, serves
        self.changed = threading.Condition()
        self.refused: deque[str] = deque(maxlen=_KEPT_REFUSALS)
        """Connections that were turned away lately, as sentences."""
        self._links: dict[int, Link] = {}
        self._epochs: dict[int, int] = {}
        self._gradients = BufferPool(shard.gradient_items * _FLOAT_BYTES)
        self._snapshot: Buffer | None = None
        self._snapshots = BufferPool(shard.snapshot_items * _FLOAT_BYTES)
        self._handshakes = threading.BoundedSemaphore(_MOST_HANDSHAKES)
        try:
            self._listener = socket.create_server((spec.host, 0))
        except OSError as error:
            raise ResourceError(
                f"the side channel cannot listen on {spec.host} ({error}); give the address of one of this machine's interfaces"
            ) from error
        self.address: Address = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="elastic-listener", daemon=True).start()  # failure: logged

    def vote(self, slot: int, step: int) -> Vote:
        """What this rank can say about a slot when `step` is to be finished."""
        if slot not in self._serves.snapshots | self._serves.leads:
            return Vote()
        with self.changed:
            link = self._alive(slot)
            wants = link.epoch if link and not link.has_snapshot and self._snapshot_is_free() else 0
            if slot not in self._serves.leads:
                return Vote(wants_snapshot=wants)
            if link is None:
                return Vote(contributed=0, stays=0, follows=0, wants_snapshot=0)
            contribution = link.contribution
            follows = link.epoch if link.has_snapshot else 0
            return Vote(
                contributed=link.epoch if contribution is not None and contribution.step == step else 0,
                stays=follows if link.progress >= step and not link.leaving else 0,
                follows=follows,
                wants_snapshot=wants if slot in self._serves.snapshots else Vote().wants_snapshot,
            )

    def collect(self, active: Mapping[int, int], step: int) -> float:
        """Wait until every active slot that this rank leads has contributed or is gone; seconds waited. Past the deadline it
        closes the links that are late."""
        mine = {slot: epoch for slot, epoch in active.items() if slot in self._serves.leads}
        started_s = time.monotonic()
        with self.changed:
            self.changed.wait_for(lambda: not self._late(mine, step), self._spec.contribution_s if mine else 0.0)
            late = self._late(mine, step)
        for link in late:
            link.close(f"no contribution to step {step} within {self._spec.contribution_s:.1f} s")
        return time.monotonic() - started_s

    def contribution(self, slot: int, epoch: int, step: int) -> Contribution | None:
        """What `collect` waited for; None when this rank does not lead the slot."""
        with self.changed:
            link = self._links.get(slot)
            arrived = link.contribution if link is not None and link.epoch == epoch else None
            return arrived if arrived is not None and arrived.step == step else None

    def expect(self, slot: int, epoch: int, step: int) -> None:
        """The slot is active in this step."""
        with self.changed:
            link = self._alive(slot, epoch)
        if link is not None:
            link.expect(step)

    def take_gradient_buffer(self) -> Buffer:
        """Held once by the caller, who fills, publishes and releases it."""
        return self._gradients.take()

    def publish(self, heads: Mapping[int, Head], gradient: Buffer | None) -> None:
        """Queue a step's result for each slot that this rank leads; a replica that lags by more than the bound is dropped."""
        for slot, head in heads.items():
            with self.changed:
                link = self._alive(slot, head.epoch)
            if link is None or not link.has_snapshot:
                continue
            if link.unsent >= self._spec.queue_steps:
                link.close(f"it lags by {link.unsent} steps, at most {self._spec.queue_steps} are kept for it")
                continue
            if gradient is None:
                link.post(Outgoing(head=head, tensors=(), done=_nothing))
            else:
                gradient.hold()
                link.post(Outgoing(head=head, tensors=(gradient.view,), done=gradient.release))

    def take_snapshot_buffer(self) -> Buffer:
        """For the slots whose vote said that they want a snapshot; held by the caller until `send_snapshot`."""
        self._snapshot = self._snapshots.take()
        return self._snapshot

    def send_snapshot(self, slots: Mapping[int, int], version: int, ints: tuple[int, ...], segments: bytes) -> None:
        """Send the snapshot that was copied into the buffer to each slot (and epoch) in the background."""
        buffer = self._snapshot
        assert buffer is not None, "take_snapshot_buffer comes first"
        for slot, epoch in slots.items():
            with self.changed:
                link = self._alive(slot, epoch)
                if link is None:
                    continue
                link.has_snapshot = True
            sizes = ((DType.INT64, len(segments) // 8), (DType.FLOAT32, self._shard.snapshot_items))
            head = Head(kind=Kind.SNAPSHOT, slot=slot, epoch=epoch, step=version, ints=ints, tensors=sizes)
            buffer.hold()
            link.post(Outgoing(head=head, tensors=(memoryview(segments), buffer.view), done=buffer.release))
            if slot not in self._serves.leads:
                link.finish()
        buffer.release()

    def fail(self, slot: int, epoch: int, reason: str) -> None:
        """Drop a replica; it may join again with a later epoch."""
        with self.changed:
            link = self._alive(slot, epoch)
        if link is not None:
            link.close(reason)

    def release(self, slot: int, epoch: int) -> None:
        """Send what is queued, say goodbye and close: the replica asked to leave."""
        with self.changed:
            link = self._alive(slot, epoch)
        if link is not None:
            link.finish()

    def links(self) -> dict[int, Link]:
        """The newest link of each slot, closed ones included."""
        with self.changed:
            return dict(self._links)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would not wake `accept`, which would let one more in
        self._listener.close()
        for link in self.links().values():
            link.close("the core shuts down")

    def _alive(self, slot: int, epoch: int | None = None) -> Link | None:
        """The slot's open link; None also when it is of another epoch than asked for."""
        link = self._links.get(slot)
        is_it = link is not None and link.closed is None and epoch in (None, link.epoch)
        return link if is_it else None

    def _late(self, expected: Mapping[int, int], step: int) -> list[Link]:
        alive = [self._alive(slot, epoch) for slot, epoch in expected.items()]
        return [link for link in alive if link and (link.contribution is None or link.contribution.step != step)]

    def _snapshot_is_free(self) -> bool:
        return self._snapshot is None or self._snapshot in self._snapshots.free

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()  # unbounded: `close` ends it
            except OSError:
                if self._listener.fileno() >= 0:  # not closed by us
                    logger.exception("no hybrid replica can join any more")
                return
            if self._handshakes.acquire(blocking=False):
                name = "elastic-handshake"
                threading.Thread(target=self._admit, args=(connected,), name=name, daemon=True).start()  # failure: `refused`
            else:
                connected.close()

    def _admit(self, connected: socket.socket) -> None:
        """On a thread of its own: a slow stranger keeps nobody waiting. Memory is touched here, not on the training thread."""
        try:
            hello = admit(connected, self._spec.secret, self._objection, deadline_s=_HANDSHAKE_S)
            leads = hello.slot in self._serves.leads
            wire = Wire(connected, frame_deadline_s=self._spec.frame_s)
            link = Link(wire, hello, self.changed, self._shard.gradient_items * _FLOAT_BYTES if leads else 0)
            self._gradients.reserve(2 if leads else 0)
            if self._snapshot is None:
                self._snapshots.reserve(1)
            self._replace(link)
        except Exception as error:  # the replica is told by its connection, and joins anew
            connected.close()
            with self.changed:
                self.refused.append(str(error) or type(error).__name__)
            logger.warning("a hybrid replica was not admitted", exc_info=not isinstance(error, ElasticError))
            logger.warning("%s", error)
        finally:
            self._handshakes.release()

    def _replace(self, link: Link) -> None:
        with self.changed:
            if link.epoch <= self._epochs.get(link.slot, -1):
                raise ElasticError(f"hybrid replica {link.slot} connected twice with epoch {link.epoch}")
            old = self._alive(link.slot)
            self._links[link.slot] = link
            self._epochs[link.slot] = link.epoch
        if old is not None:
            old.close(f"replaced by epoch {link.epoch}")
        link.start()

    def _objection(self, hello: Hello) -> str:
        shard = self._shard
        if hello.slot not in self._serves.leads | self._serves.snapshots:
            return f"this rank does not serve slot {hello.slot}"
        if (hello.tp_rank, hello.pp_rank) != (shard.tp_rank, shard.pp_rank):
            return f"it is shard tp {hello.tp_rank} pp {hello.pp_rank}, here is tp {shard.tp_rank} pp {shard.pp_rank}"
        if hello.fingerprint != shard.fingerprint:
            return "its parameters have other names or shapes; use the same model and the core's tp and pp"
        with self.changed:
            newest = self._epochs.get(hello.slot, -1)
        return f"epoch {hello.epoch} is stale, {newest} is known" if hello.epoch <= newest else ""


def _nothing() -> None:
    """A message without a buffer has nothing to give back."""
