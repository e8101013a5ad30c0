"""The side channel between two threads over loopback: what arrives, what is refused, what a broken peer can do."""

import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from libra_core.elastic.agreement import NO_SAY
from libra_core.elastic.endpoint import CoreEndpoint, Serves, Shard
from libra_core.elastic.follower import Follower
from libra_core.elastic.handshake import Hello, admit, greet
from libra_core.elastic.spec import ElasticSpec
from libra_core.elastic.wire import DType, Head, Kind
from libra_core.errors import DeadlineError, ElasticError

ITEMS = 1000
SECRET = b"s" * 32
SHARD = Shard(tp_rank=0, pp_rank=0, fingerprint=b"f" * 32, gradient_items=ITEMS, snapshot_items=3 * ITEMS)
SPEC = ElasticSpec(secret=SECRET, slots=2, contribution_s=0.3, frame_s=0.5, queue_steps=4)
GRADIENT = memoryview(struct.pack(f"<{ITEMS}f", *range(ITEMS)))
HELLO = Hello(slot=0, epoch=1, tp_rank=0, pp_rank=0, fingerprint=SHARD.fingerprint)


@contextmanager
def core(spec: ElasticSpec = SPEC, *, leads: frozenset[int] = frozenset({0, 1})) -> Iterator[CoreEndpoint]:
    endpoint = CoreEndpoint(spec, SHARD, Serves(leads=leads, snapshots=frozenset({0, 1})))
    try:
        yield endpoint
    finally:
        endpoint.close()


def follow(endpoint: CoreEndpoint, *, epoch: int = 1, slot: int = 0, spec: ElasticSpec = SPEC) -> Follower:
    return Follower(spec, SHARD, replace(HELLO, epoch=epoch, slot=slot), [endpoint.address])


def until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it did not come to pass"
        time.sleep(0.002)


def give_snapshot(endpoint: CoreEndpoint, version: int, *, slot: int = 0, epoch: int = 1) -> None:
    until(lambda: endpoint.vote(slot, version).wants_snapshot == epoch)
    buffer = endpoint.take_snapshot_buffer()
    buffer.data[:] = bytes([version]) * len(buffer.data)
    endpoint.send_snapshot({slot: epoch}, version, (7,), struct.pack("<3q", 0, 0, ITEMS))


def publish(endpoint: CoreEndpoint, step: int, *, slot: int = 0, epoch: int = 1, value: int = 0) -> None:
    buffer = endpoint.take_gradient_buffer()
    buffer.data[:] = bytes([value]) * len(buffer.data)
    sizes = ((DType.FLOAT32, ITEMS),)
    endpoint.publish({slot: Head(kind=Kind.RESULT, slot=slot, epoch=epoch, step=step, tensors=sizes)}, buffer)
    buffer.release()


def active(endpoint: CoreEndpoint, step: int = 3) -> Follower:
    """A follower that has its snapshot and whose contribution to the step is awaited."""
    follower = follow(endpoint)
    give_snapshot(endpoint, step)
    follower.snapshot(deadline_s=2.0)
    follower.progress(step)
    endpoint.expect(0, 1, step)
    return follower


# ---- what arrives ----


def test_a_contribution_arrives_with_its_numbers_bit_for_bit() -> None:
    with core() as endpoint:
        follower = active(endpoint)
        follower.contribute(3, (41, -1), (0.1, float("inf")), GRADIENT)
        assert endpoint.collect({0: 1}, 3) < SPEC.contribution_s
        found = endpoint.contribution(0, 1, 3)
        assert found is not None
        assert (found.ints, found.floats) == ((41, -1), (0.1, float("inf")))
        assert bytes(found.gradient) == bytes(GRADIENT)
        follower.close()


def test_snapshot_then_results_arrive_in_order() -> None:
    with core() as endpoint:
        follower = follow(endpoint)
        give_snapshot(endpoint, 5)
        for step in (5, 6, 7):
            publish(endpoint, step, value=step)
        (snapshot,) = follower.snapshot(deadline_s=2.0)
        assert (snapshot.head.step, snapshot.head.ints) == (5, (7,))
        assert bytes(snapshot.tensors[1]) == bytes([5]) * (12 * ITEMS)
        for step in (5, 6, 7):
            received = follower.receive(deadline_s=2.0)
            assert received.head.step == step
            assert set(received.tensors[0]) == {step}
            received.release()
        follower.close()


def test_votes_follow_the_replica_from_snapshot_to_leave() -> None:
    with core() as endpoint:
        assert endpoint.vote(0, 3).wants_snapshot == 0
        follower = follow(endpoint)
        until(lambda: endpoint.vote(0, 3).wants_snapshot == 1)
        give_snapshot(endpoint, 3)
        assert (endpoint.vote(0, 3).follows, endpoint.vote(0, 3).stays) == (1, 0)
        follower.progress(3)
        until(lambda: endpoint.vote(0, 3).stays == 1)
        assert endpoint.vote(0, 4).stays == 0, "it is a version behind"
        follower.leave(3)
        until(lambda: endpoint.vote(0, 3).stays == 0)
        endpoint.release(0, 1)
        follower.snapshot(deadline_s=2.0)
        assert follower.receive(deadline_s=2.0).head.kind is Kind.BYE
        follower.close()


def test_a_rank_without_a_say_abstains() -> None:
    with core(leads=frozenset({1})) as endpoint:
        assert endpoint.vote(5, 0).wants_snapshot == NO_SAY
        assert (endpoint.vote(0, 0).contributed, endpoint.vote(0, 0).wants_snapshot) == (NO_SAY, 0)


def test_parts_of_a_snapshot_come_from_every_rank_that_serves() -> None:
    with core() as leader, core(leads=frozenset()) as other:
        follower = Follower(SPEC, SHARD, HELLO, [leader.address, other.address])
        for endpoint in (leader, other):
            give_snapshot(endpoint, 4)
        assert [part.head.step for part in follower.snapshot(deadline_s=2.0)] == [4, 4]
        until(lambda: other.links()[0].closed == "left")
        follower.close()


def test_parts_of_two_versions_are_refused() -> None:
    with core() as leader, core(leads=frozenset()) as other:
        follower = Follower(SPEC, SHARD, HELLO, [leader.address, other.address])
        give_snapshot(leader, 4)
        give_snapshot(other, 5)
        with pytest.raises(ElasticError, match="snapshot of one version"):
            follower.snapshot(deadline_s=2.0)
        follower.close()


# ---- what is ignored ----


@pytest.mark.parametrize(("step", "epoch"), [(2, 1), (4, 1), (3, 0), (3, 2)], ids=["old", "early", "stale epoch", "later epoch"])
def test_contributions_of_another_step_or_epoch_are_ignored(step: int, epoch: int) -> None:
    with core() as endpoint:
        follower = active(endpoint)
        follower._hello = replace(HELLO, epoch=epoch)
        follower.contribute(step, (1,), (), GRADIENT)
        follower._hello = HELLO
        follower.contribute(3, (2,), (), GRADIENT)
        endpoint.collect({0: 1}, 3)
        found = endpoint.contribution(0, 1, 3)
        assert found is not None
        assert found.ints == (2,)
        assert endpoint.links()[0].ignored == 1
        follower.close()


def test_the_first_of_two_contributions_counts_and_the_second_does_not_touch_it() -> None:
    with core() as endpoint:
        follower = active(endpoint)
        follower.contribute(3, (1,), (), GRADIENT)
        follower.contribute(3, (2,), (), memoryview(bytes(4 * ITEMS)))
        until(lambda: endpoint.links()[0].ignored == 1)
        found = endpoint.contribution(0, 1, 3)
        assert found is not None
        assert (found.ints, bytes(found.gradient)) == ((1,), bytes(GRADIENT))
        follower.close()


def test_before_activation_nothing_counts_and_nothing_is_waited_for() -> None:
    with core() as endpoint:
        follower = follow(endpoint)
        follower.contribute(0, (1,), (), GRADIENT)
        until(lambda: bool(endpoint.links()) and endpoint.links()[0].ignored == 1)
        assert endpoint.collect({}, 0) < 0.05
        assert endpoint.vote(0, 0).contributed == 0
        follower.close()


# ---- what a broken peer costs ----


def test_a_silent_replica_costs_one_deadline_and_then_nothing() -> None:
    with core() as endpoint:
        follower = active(endpoint)
        waited_s = endpoint.collect({0: 1}, 3)
        assert SPEC.contribution_s <= waited_s < SPEC.contribution_s + 0.5
        assert endpoint.links()[0].closed == "no contribution to step 3 within 0.3 s"
        assert endpoint.collect({0: 1}, 4) < 0.05
        follower.close()


def test_a_death_is_seen_at_once() -> None:
    with core(replace(SPEC, contribution_s=30.0)) as endpoint:
        active(endpoint).close()
        assert endpoint.collect({0: 1}, 3) < 2.0
        assert endpoint.vote(0, 3).contributed == 0


def raw(endpoint: CoreEndpoint, secret: bytes = SECRET, hello: Hello = HELLO) -> socket.socket:
    connected = socket.create_connection(endpoint.address)
    greet(connected, secret, hello, deadline_s=2.0)
    return connected


def test_half_a_contribution_does_not_exist() -> None:
    sizes = ((DType.FLOAT32, ITEMS),)
    head = Head(kind=Kind.CONTRIBUTION, slot=0, epoch=1, step=3, ints=(9,), tensors=sizes)
    with core() as endpoint:
        connected = raw(endpoint)
        until(lambda: bool(endpoint.links()))
        endpoint.expect(0, 1, 3)
        connected.sendall(head.encode() + bytes(2 * ITEMS))
        endpoint.collect({0: 1}, 3)
        assert endpoint.contribution(0, 1, 3) is None
        connected.close()


def test_a_message_that_stops_in_the_middle_ends_its_connection() -> None:
    with core(replace(SPEC, contribution_s=30.0)) as endpoint:
        connected = raw(endpoint)
        until(lambda: bool(endpoint.links()))
        connected.sendall(Head(kind=Kind.PROGRESS, slot=0, epoch=1, step=3).encode()[:-1])
        until(lambda: endpoint.links()[0].closed == "a message stopped in the middle for 0.5 s")
        connected.close()


@pytest.mark.parametrize(
    "message",
    [b"\x80\x04\x95" * 20, Head(kind=Kind.CONTRIBUTION, slot=0, epoch=1, step=3, tensors=((DType.FLOAT32, 1 << 50),)).encode()],
    ids=["a pickle", "an absurd size"],
)
def test_nonsense_ends_its_connection_and_nothing_else(message: bytes) -> None:
    with core() as endpoint:
        other = follow(endpoint, slot=1)
        connected = raw(endpoint)
        until(lambda: len(endpoint.links()) == 2)
        connected.sendall(message)
        until(lambda: endpoint.links()[0].closed is not None)
        assert endpoint.links()[1].closed is None
        connected.close()
        other.close()


def test_a_contribution_of_another_size_ends_its_connection() -> None:
    with core() as endpoint:
        follower = active(endpoint)
        follower.contribute(3, (), (), memoryview(bytes(8)))
        endpoint.collect({0: 1}, 3)
        assert "different models or layouts" in str(endpoint.links()[0].closed)
        follower.close()


def test_a_replica_that_lags_too_far_is_dropped_and_the_core_does_not_wait() -> None:
    with core() as endpoint:
        connected = raw(endpoint)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        until(lambda: bool(endpoint.links()))
        give_snapshot(endpoint, 0)
        started_s = time.monotonic()
        for step in range(2000):
            publish(endpoint, step)
            if endpoint.links()[0].closed is not None:
                break
        assert time.monotonic() - started_s < 2.0
        assert "it lags by 4 steps" in str(endpoint.links()[0].closed)
        connected.close()


# ---- who may come in ----


def test_a_wrong_secret_is_refused_on_both_sides() -> None:
    with core() as endpoint:
        with pytest.raises(ElasticError, match="does not hold this run's secret"):
            raw(endpoint, b"x" * 32)
        until(lambda: len(endpoint.refused) > 0)
        assert endpoint.links() == {}


def test_a_peer_that_cannot_prove_the_secret_is_not_let_in() -> None:
    """It skips the check of the core and sends a proof of its own making."""
    with core() as endpoint:
        connected = socket.create_connection(endpoint.address)
        connected.sendall(b"LBH1" + HELLO.encode() + b"n" * 32)
        connected.recv(64)
        connected.sendall(b"p" * 32)
        until(lambda: list(endpoint.refused) == ["a peer without this run's secret connected to the side channel"])
        assert endpoint.links() == {}
        connected.close()


def test_a_proof_cannot_be_replayed_on_another_connection() -> None:
    ours, theirs = socket.socketpair()
    recorded = bytearray()

    class Tapped(socket.socket):
        def sendall(self, data: bytes, *flags: int) -> None:  # type: ignore[override]
            recorded.extend(data)
            super().sendall(data)

    tapped = Tapped(fileno=ours.detach())
    from threading import Thread

    side = Thread(target=lambda: admit(theirs, SECRET, lambda hello: "", deadline_s=2.0))
    side.start()
    greet(tapped, SECRET, HELLO, deadline_s=2.0)
    side.join()
    with core() as endpoint:
        replayed = socket.create_connection(endpoint.address)
        replayed.sendall(recorded)
        until(lambda: len(endpoint.refused) > 0)
        assert endpoint.links() == {}
        replayed.close()
    tapped.close()
    theirs.close()


def test_a_replica_that_one_rank_refuses_leaves_the_others_too() -> None:
    with core() as leader, core(leads=frozenset()) as other:
        follow(other, epoch=2)
        until(lambda: 0 in other.links())
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", ResourceWarning)
            with pytest.raises(ElasticError, match="epoch 1 is stale"):
                Follower(SPEC, SHARD, HELLO, [leader.address, other.address])
        assert [str(warning.message) for warning in seen] == [], "closed, not left to the garbage collector"
        until(lambda: 0 in leader.links() and leader.links()[0].closed is not None)


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (replace(HELLO, slot=7), "does not serve slot 7"),
        (replace(HELLO, tp_rank=1), "it is shard tp 1 pp 0, here is tp 0 pp 0"),
        (replace(HELLO, fingerprint=b"g" * 32), "other names or shapes"),
    ],
)
def test_a_replica_that_does_not_fit_is_told_why(hello: Hello, why: str) -> None:
    with core() as endpoint, pytest.raises(ElasticError, match=why):
        raw(endpoint, hello=hello)


def test_a_later_epoch_replaces_the_connection_and_an_earlier_one_is_stale() -> None:
    with core() as endpoint:
        first = follow(endpoint, epoch=4)
        until(lambda: 0 in endpoint.links())
        second = follow(endpoint, epoch=5)
        until(lambda: endpoint.links()[0].epoch == 5)
        with pytest.raises(ElasticError, match="epoch 4 is stale, 5 is known"):
            follow(endpoint, epoch=4)
        with pytest.raises(ElasticError):
            first.receive(deadline_s=2.0)
        first.close()
        second.close()


def test_a_new_connection_is_not_waited_for_in_place_of_the_lost_one() -> None:
    with core(replace(SPEC, contribution_s=30.0)) as endpoint:
        active(endpoint).close()
        again = follow(endpoint, epoch=2)
        until(lambda: endpoint.links()[0].epoch == 2)
        assert endpoint.collect({0: 1}, 3) < 2.0
        again.close()


def test_no_core_and_a_silent_core_are_told_in_sentences() -> None:
    with core() as endpoint:
        address = endpoint.address
        follower = follow(endpoint)
        with pytest.raises(DeadlineError, match="the core sent nothing within"):
            follower.receive(deadline_s=0.05)
        follower.close()
    with pytest.raises(ElasticError, match=f"no core listens on {address[0]}"):
        Follower(SPEC, SHARD, HELLO, [address])
