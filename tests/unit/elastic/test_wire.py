"""One connection's deadlines."""

import socket
import time
from threading import Event, Thread

import pytest

from libra_core.elastic.wire import DType, Head, Kind, Wire
from libra_core.errors import ElasticError

ITEMS = 4 << 20
"""16 MB: far more than the buffers take."""
BUFFER = 1 << 18


def test_a_peer_that_reads_a_part_in_time_does_not_get_the_whole_deadline_for_the_next() -> None:
    part = memoryview(bytes(4 * ITEMS))
    head = Head(kind=Kind.SNAPSHOT, slot=0, epoch=1, step=3, tensors=((DType.FLOAT32, ITEMS),) * 2)
    done = Event()

    def read_the_first(peer: socket.socket) -> None:
        done.wait(0.8)
        left = len(head.encode()) + len(part)
        while left and (received := len(peer.recv(min(left, 1 << 20)))):
            left -= received
        done.wait(10.0)

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        # Buffers of a fixed size: those that grow by themselves took all of the second part on a host with much memory.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        peer, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        reader = Thread(target=read_the_first, args=(peer,))
        reader.start()
        wire = Wire(ours, frame_deadline_s=1.0)
        started_s = time.monotonic()
        with pytest.raises(ElasticError, match="snapshot of step 3 could not be sent"):
            wire.send(head, (part, part))
        assert time.monotonic() - started_s < 1.5
        done.set()
        ours.shutdown(socket.SHUT_RDWR)  # on a busy host the first part too may not be through
        reader.join()
        wire.free_outgoing()
        peer.close()
