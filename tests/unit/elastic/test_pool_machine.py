"""Joins, leaves, kills, steps and decisions in any order: no sample lost or trained twice, no deadlock, every GPU counted."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libra_core.elastic.membership import Member, Message, Pool, Signal, State
from libra_core.elastic.samples import CORE, Lease, SampleBook

SLOTS, GPUS = 3, 2
SIGNALS = st.sampled_from([signal for signal in Signal if signal is not Signal.EXPIRED])


class PoolMachine(RuleBasedStateMachine):
    """A run in which anything may happen at any time. `memory` holds every message ever sent, to be sent again later."""

    @initialize()
    def start(self) -> None:
        self.pool = Pool.of(replicas=SLOTS, gpus_each=GPUS)
        self.book = SampleBook()
        self.now_s = 0.0
        self.step = 0
        self.issued = 0
        self.gradients: dict[int, int] = {}
        self.open: dict[int, tuple[int, list[int]]] | None = None
        self.memory: list[Message] = []

    @rule(slot=st.integers(0, SLOTS - 1), signal=SIGNALS)
    def signal(self, slot: int, signal: Signal) -> None:
        """Any owner says anything about the present epoch: decisions, progress, deaths."""
        message = Message(slot=slot, epoch=self.pool.members[slot].epoch, signal=signal, step=self.step)
        self.memory.append(message)
        self.pool = self.pool.receive(message, self.now_s)

    @precondition(lambda self: self.memory)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """An old message arrives again; of a past epoch it must not matter."""
        message = data.draw(st.sampled_from(self.memory))
        before = self.pool.members[message.slot]
        self.pool = self.pool.receive(message, self.now_s)
        if message.epoch != before.epoch:
            assert self.pool.members[message.slot] is before

    @rule(seconds=st.floats(0.0, 400.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.pool = self.pool.expire(self.now_s)

    @rule(count=st.integers(1, 6))
    def generate(self, count: int) -> None:
        self.book.add(range(self.issued, self.issued + count))
        self.issued += count

    @precondition(lambda self: self.open is None and self.book.waiting)
    @rule(share=st.integers(1, 4))
    def begin(self, share: int) -> None:
        """The batch is shared by the core and whoever is active."""
        self.open = {}
        self.book.lease(self.book.waiting[:share], Lease(step=self.step, slot=CORE))
        for member in self.pool.active:
            samples = self.book.waiting[:share]
            self.book.lease(samples, Lease(step=self.step, slot=member.slot, epoch=member.epoch))
            self.open[member.slot] = (member.epoch, samples)

    @precondition(lambda self: self.open is not None)
    @rule(arrived=st.sets(st.integers(0, SLOTS - 1)), again=st.booleans())
    def finish(self, arrived: set[int], again: bool = False) -> None:
        """Contributions of any subset arrive; one counts only while its sender is still active in the epoch it was given in.

        `again`: the core trains what the others held in the same step, else it waits for a later one.
        """
        assert self.open is not None
        active = {member.slot: member.epoch for member in self.pool.active}
        counted = {slot: epoch for slot, (epoch, _) in self.open.items() if slot in arrived and active.get(slot) == epoch}
        for slot in self.open.keys() - counted.keys() if again else ():
            self.book.lease(self.book.take_back(self.step, slot), Lease(step=self.step, slot=CORE))
        core = [sample for sample, lease in self.book.leased.items() if lease.slot == CORE]
        summed = core + [sample for slot in counted for sample in self.open[slot][1]]
        back = self.book.settle(self.step, counted)
        assert set(back).isdisjoint(summed)
        assert not (again and back)
        for sample in summed:
            self.gradients[sample] = self.gradients.get(sample, 0) + 1
        for slot, (epoch, _) in self.open.items():
            if slot not in counted:
                message = Message(slot=slot, epoch=epoch, signal=Signal.DROPPED)
                self.pool = self.pool.receive(message, self.now_s)
        self.open = None
        self.step += 1

    @precondition(lambda self: self.open is not None)
    @rule()
    def discard(self) -> None:
        self.book.discard(self.step)
        self.open = None

    @invariant()
    def every_sample_is_in_one_place(self) -> None:
        places = [*self.book.waiting, *self.book.leased, *self.book.trained]
        assert sorted(places) == list(range(self.issued))

    @invariant()
    def no_sample_is_in_two_gradients(self) -> None:
        assert all(count == 1 for count in self.gradients.values())
        assert self.gradients.keys() == self.book.trained.keys()

    @invariant()
    def every_gpu_is_accounted_for(self) -> None:
        assert sum(self.pool.gpus().values()) == SLOTS * GPUS

    def teardown(self) -> None:
        """No deadlock: time alone settles every member, recovery brings all back to serving, and every sample gets trained."""
        for _ in range(3):
            self.now_s += 1000.0
            self.pool = self.pool.expire(self.now_s)
        assert all(member.state in {State.SERVING, State.ACTIVE, State.FAILED} for member in self.pool.members)
        assert all(serving(member, self.now_s).state is State.SERVING for member in self.pool.members)
        if self.open is not None:
            self.finish(set())
        while self.book.waiting:
            self.begin(4)
            self.finish(set(range(SLOTS)))
        assert len(self.book.trained) == self.issued


def serving(member: Member, now_s: float) -> Member:
    """After the signals that a controller would send to get it back."""
    for signal in (Signal.RECOVERED, Signal.LEAVE, Signal.SERVED):
        member = member.receive(Message(slot=member.slot, epoch=member.epoch, signal=signal), now_s)
    return member


PoolMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
