"""The deadline of a handshake; who is let in is tested in test_side_channel, over a real listener."""

import socket
import time
from threading import Event, Thread

import pytest

from libra_core.elastic.handshake import Hello, admit
from libra_core.errors import ElasticError

HELLO = Hello(slot=0, epoch=1, tp_rank=0, pp_rank=0, fingerprint=b"f" * 32)


def test_a_stranger_that_sends_byte_by_byte_is_cut_off_at_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    done = Event()

    def drip() -> None:
        for byte in b"LBH1" + HELLO.encode():
            ours.sendall(bytes([byte]))
            if done.wait(0.04):
                return

    side = Thread(target=drip)
    side.start()
    started_s = time.monotonic()
    with pytest.raises(ElasticError, match="did not finish its handshake"):
        admit(theirs, b"s" * 32, lambda hello: "", deadline_s=0.2)
    assert time.monotonic() - started_s < 1.0, "the bytes alone take 1.8 s"
    done.set()
    side.join()
    ours.close()
    theirs.close()
