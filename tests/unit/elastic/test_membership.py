"""The membership machine edge by edge; orders of events are tested in test_pool_machine."""

import pytest

from libra_core.elastic.membership import EDGES, Deadlines, Edge, Member, Message, Owner, Pool, Role, Signal, State

TERMINAL = {State.SERVING, State.ACTIVE, State.FAILED}


def at(state: State, *, epoch: int = 3, since_s: float = 0.0) -> Member:
    return Member(slot=1, gpus=2, state=state, epoch=epoch, since_s=since_s)


def say(member: Member, signal: Signal, *, epoch: int | None = None, step: int | None = None) -> Member:
    if signal is Signal.EXPIRED:
        return member.expire(Deadlines(), now_s=1000.0)
    message = Message(slot=member.slot, epoch=member.epoch if epoch is None else epoch, signal=signal, step=step)
    return member.receive(message, now_s=1.0)


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.source}-{edge.signal}")
def test_every_edge_has_a_way_back(edge: Edge) -> None:
    member = say(at(edge.source), edge.signal)
    assert member.state is edge.target
    for signal in edge.inverse:
        member = say(member, signal)
    assert member.state is edge.source


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
def test_every_passing_state_has_a_deadline_that_ends_it(state: State) -> None:
    member, deadlines = at(state), Deadlines()
    now_s = 0.0
    for _ in range(3):
        now_s += 1000.0
        member = member.expire(deadlines, now_s)
    assert member.state in TERMINAL


@pytest.mark.parametrize("state", State)
def test_death_ends_every_state_and_recovery_ends_death(state: State) -> None:
    dead = say(at(state), Signal.DIED)
    assert dead.state is State.FAILED
    assert say(dead, Signal.RECOVERED).state is State.SERVING


def test_only_the_clock_sends_expiry_and_each_signal_has_one_owner() -> None:
    owners: dict[Signal, set[Owner]] = {}
    for edge in EDGES:
        owners.setdefault(edge.signal, set()).add(edge.owner)
    assert all(len(found) == 1 for found in owners.values())
    assert owners[Signal.EXPIRED] == {Owner.CLOCK}


SENT = [edge for edge in EDGES if edge.signal is not Signal.EXPIRED]


@pytest.mark.parametrize("edge", SENT, ids=lambda edge: f"{edge.source}-{edge.signal}")
def test_messages_of_another_epoch_change_nothing(edge: Edge) -> None:
    member = at(edge.source)
    assert say(member, edge.signal, epoch=member.epoch - 1) is member
    assert say(member, edge.signal, epoch=member.epoch + 1) is member


@pytest.mark.parametrize(
    "edge", [edge for edge in SENT if edge.source is not edge.target], ids=lambda e: f"{e.source}-{e.signal}"
)
def test_a_repeated_message_changes_nothing(edge: Edge) -> None:
    before = at(edge.source)
    message = Message(slot=1, epoch=before.epoch, signal=edge.signal)
    once = before.receive(message, now_s=1.0)
    assert once.receive(message, now_s=2.0) is once


@pytest.mark.parametrize("state", State)
def test_nobody_can_send_that_a_deadline_passed(state: State) -> None:
    member = at(state)
    assert member.receive(Message(slot=1, epoch=3, signal=Signal.EXPIRED), now_s=1e6) is member


def test_a_message_of_the_first_attempt_does_not_advance_the_second() -> None:
    waiting = say(say(at(State.SERVING), Signal.JOIN), Signal.DRAINED)
    again = say(say(waiting, Signal.RESTORED), Signal.REFETCH)
    assert again.epoch == waiting.epoch + 1
    assert say(again, Signal.RESTORED, epoch=waiting.epoch).state is State.SNAPSHOT


def test_an_active_member_knows_its_first_step_until_it_is_none() -> None:
    active = say(at(State.REPLAY), Signal.ACTIVATED, step=12)
    assert active.active_from == 12
    assert say(active, Signal.LEAVE).active_from is None


def test_a_deadline_says_what_was_waited_for_and_how_long() -> None:
    member = at(State.LEAVING, since_s=10.0).expire(Deadlines(leave_s=5.0), now_s=17.0)
    assert (member.state, member.reason) == (State.FAILED, "leaving for 7 s, at most 5 s allowed")


def test_gpus_are_counted_where_they_work() -> None:
    pool = Pool.of(replicas=3, gpus_each=2)
    pool = pool.receive(Message(slot=0, epoch=0, signal=Signal.JOIN), 0.0)
    pool = pool.receive(Message(slot=0, epoch=1, signal=Signal.DRAINED), 0.0)
    pool = pool.receive(Message(slot=2, epoch=0, signal=Signal.DIED), 0.0)
    assert pool.gpus() == {Role.ROLLOUT: 2, Role.TRAINING: 0, Role.MOVING: 2, Role.LOST: 2}
