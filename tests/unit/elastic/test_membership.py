"""The membership of hybrid replicas: signals of any order and age. What sends them is tested in `runtime/test_hybrid_pool.py`."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from libra_core.elastic.membership import NEXT, Member, MemberState, Signal

WAYS_BACK = {
    MemberState.DRAINING: (Signal.SERVES,),
    MemberState.JOINING: (Signal.SERVES,),
    MemberState.ACTIVE: (Signal.LEAVE, Signal.SERVES),
    MemberState.LEAVING: (Signal.SERVES,),
    MemberState.FAILED: (Signal.SERVES,),
    MemberState.SERVING: (),
}
TO_TRAIN = (Signal.JOIN, Signal.DRAINED, Signal.ACTIVATED)


def told(member: Member, *signals: Signal) -> Member:
    for signal in signals:
        member = member.after(signal, member.epoch, 7)
    return member


@pytest.mark.parametrize("state", MemberState)
def test_from_every_state_there_is_a_way_to_serve_and_from_there_to_train(state: MemberState) -> None:
    serving = told(Member(state=state, epoch=3), *WAYS_BACK[state])
    assert serving.state is MemberState.SERVING
    active = told(serving, *TO_TRAIN)
    assert (active.state, active.active_from) == (MemberState.ACTIVE, 7)
    assert active.epoch > serving.epoch


@pytest.mark.parametrize(("state", "signal"), NEXT, ids=lambda value: str(value))
def test_signals_of_another_epoch_change_nothing(state: MemberState, signal: Signal) -> None:
    member = Member(state=state, epoch=3)
    assert member.after(signal, 2) is member
    assert member.after(signal, 4) is member
    assert member.after(signal, 3).state is NEXT[state, signal]


def test_a_leave_that_cannot_be_taken_back_becomes_another_attempt_to_join() -> None:
    leaving = told(Member(), *TO_TRAIN, Signal.LEAVE)
    again = told(leaving, Signal.REJOIN)
    assert (again.state, again.epoch) == (MemberState.JOINING, leaving.epoch + 1)
    assert again.after(Signal.ACTIVATED, leaving.epoch, 9) is again, "the core's word of the attempt before"


class Memberships(RuleBasedStateMachine):
    """A replica that hears anything, at any time, also of attempts long past."""

    def __init__(self) -> None:
        super().__init__()
        self.member = Member()
        self.sent: list[tuple[Signal, int]] = []
        self.heard: list[Signal] = []
        """Since the present attempt began."""

    def hear(self, signal: Signal, epoch: int) -> None:
        before, self.member = self.member, self.member.after(signal, epoch, 7)
        if self.member.epoch != before.epoch:
            assert self.member.epoch == before.epoch + 1
            self.heard = []
        if self.member is not before:
            self.heard.append(signal)

    @rule(signal=st.sampled_from(Signal))
    def signal(self, signal: Signal) -> None:
        self.sent.append((signal, self.member.epoch))
        self.hear(signal, self.member.epoch)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        signal, epoch = data.draw(st.sampled_from(self.sent))
        before = self.member
        self.hear(signal, epoch)
        assert epoch == before.epoch or self.member is before

    @invariant()
    def it_trains_only_after_it_was_drained_and_counted_on_in_one_attempt(self) -> None:
        assert (self.member.active_from is not None) == (self.member.state is MemberState.ACTIVE)
        if self.member.state is MemberState.ACTIVE:
            assert self.heard in ([Signal.JOIN, Signal.DRAINED, Signal.ACTIVATED], [Signal.REJOIN, Signal.ACTIVATED])

    def teardown(self) -> None:
        assert told(self.member, *WAYS_BACK[self.member.state]).state is MemberState.SERVING


TestMemberships = Memberships.TestCase
TestMemberships.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
