"""Both ends of a new connection prove that they hold the run's secret before anything else is read from it.

```
replica → core   "LBH1" | hello | nonce
core → replica   nonce | HMAC(secret, "core" | hello | both nonces)
replica → core   HMAC(secret, "replica" | hello | both nonces)
core → replica   verdict: length u16 | sentence; empty means welcome
```
It keeps strangers out. It does not hide the traffic: the interface that is listened on must be one of the cluster alone.
"""

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from libra_core.errors import ElasticError

SECRET_BYTES = 32
_MAGIC = b"LBH1"
_NONCE = 32
_DIGEST = hashlib.sha256().digest_size
_HELLO = struct.Struct("<HIHH32s")
_LENGTH = struct.Struct("<H")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who asks to join, with which shard, of which model."""

    slot: int
    epoch: int
    tp_rank: int
    pp_rank: int
    fingerprint: bytes
    """32 bytes over names and shapes of the shard's parameters: equal where flat buffers mean the same."""

    def encode(self) -> bytes:
        return _HELLO.pack(self.slot, self.epoch, self.tp_rank, self.pp_rank, self.fingerprint)

    @classmethod
    def decode(cls, data: bytes) -> "Hello":
        slot, epoch, tp_rank, pp_rank, fingerprint = _HELLO.unpack(data)
        return cls(slot=slot, epoch=epoch, tp_rank=tp_rank, pp_rank=pp_rank, fingerprint=fingerprint)


def greet(connected: socket.socket, secret: bytes, hello: Hello, *, deadline_s: float) -> None:
    """The replica's side.

    Raises:
        ElasticError: the other side does not hold the secret, refuses, or does not answer in time.
    """
    end_s = time.monotonic() + deadline_s
    connected.settimeout(deadline_s)
    ours = secrets.token_bytes(_NONCE)
    try:
        connected.sendall(_MAGIC + hello.encode() + ours)
        theirs, proof = _take(connected, _NONCE, end_s), _take(connected, _DIGEST, end_s)
        if not hmac.compare_digest(proof, _proof(secret, b"core", hello, ours, theirs)):
            raise ElasticError("the core's side channel does not hold this run's secret; is it that of another run?")
        connected.sendall(_proof(secret, b"replica", hello, ours, theirs))
        (length,) = _LENGTH.unpack(_take(connected, _LENGTH.size, end_s))
        refusal = _take(connected, length, end_s).decode("utf-8", "replace")
    except OSError as error:
        raise ElasticError(f"no answer from the core's side channel within {deadline_s:.0f} s: {error}") from error
    if refusal:
        raise ElasticError(f"the core refuses hybrid replica {hello.slot}: {refusal}")


def admit(connected: socket.socket, secret: bytes, objection: Callable[[Hello], str], *, deadline_s: float) -> Hello:
    """The core's side; `objection` says what speaks against an authentic hello, or nothing.

    Raises:
        ElasticError: the peer does not speak the protocol, does not hold the secret, is refused, or does not answer in time.
    """
    end_s = time.monotonic() + deadline_s
    connected.settimeout(deadline_s)
    try:
        if _take(connected, len(_MAGIC), end_s) != _MAGIC:
            raise ElasticError("a stranger connected to the side channel")
        hello = Hello.decode(_take(connected, _HELLO.size, end_s))
        theirs, ours = _take(connected, _NONCE, end_s), secrets.token_bytes(_NONCE)
        connected.sendall(ours + _proof(secret, b"core", hello, theirs, ours))
        if not hmac.compare_digest(_take(connected, _DIGEST, end_s), _proof(secret, b"replica", hello, theirs, ours)):
            raise ElasticError("a peer without this run's secret connected to the side channel")
        refusal = objection(hello)
        words = refusal.encode()[: 1 << 10]
        connected.sendall(_LENGTH.pack(len(words)) + words)
    except OSError as error:
        raise ElasticError(f"a peer did not finish its handshake within {deadline_s:.0f} s: {error}") from error
    if refusal:
        raise ElasticError(f"hybrid replica {hello.slot} was refused: {refusal}")
    return hello


def _proof(secret: bytes, side: bytes, hello: Hello, replica_nonce: bytes, core_nonce: bytes) -> bytes:
    return hmac.digest(secret, side + hello.encode() + replica_nonce + core_nonce, "sha256")


def _take(connected: socket.socket, size: int, end_s: float) -> bytes:
    """The deadline is that of the whole handshake: a peer that sends a byte now and then does not move it."""
    taken = bytearray()
    while len(taken) < size:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        connected.settimeout(left_s)
        part = connected.recv(size - len(taken))
        if not part:
            raise ElasticError("a peer left in the middle of the handshake")
        taken += part
    return bytes(taken)
