"""Every sample is trained exactly once, whoever held it."""

from libra_core.elastic.samples import CORE, Lease, SampleBook


def book() -> SampleBook:
    made = SampleBook()
    made.add(range(6))
    made.lease([0, 1], Lease(step=0, slot=CORE))
    made.lease([2, 3], Lease(step=0, slot=4, epoch=1))
    return made


def test_a_dead_replicas_samples_come_first_in_the_next_step() -> None:
    made = book()
    assert made.settle(0, {}) == (2, 3)
    assert made.waiting == [2, 3, 4, 5]
    assert made.trained == {0: 0, 1: 0}


def test_a_contribution_of_another_epoch_does_not_count() -> None:
    assert book().settle(0, {4: 2}) == (2, 3)


def test_settling_again_changes_nothing() -> None:
    made = book()
    made.settle(0, {4: 1})
    assert made.settle(0, {}) == ()
    assert made.trained == {0: 0, 1: 0, 2: 0, 3: 0}


def test_a_void_step_gives_all_of_it_back() -> None:
    made = book()
    assert made.discard(0) == (0, 1, 2, 3)
    assert made.waiting == [0, 1, 2, 3, 4, 5]


def test_a_known_sample_is_not_added_again() -> None:
    made = book()
    made.add([0, 2, 5, 6, 6])
    assert made.waiting == [4, 5, 6]


def test_what_a_lost_replica_held_can_be_trained_by_the_core_in_the_same_step() -> None:
    made = book()
    back = made.take_back(0, 4)
    made.lease(back, Lease(step=0, slot=CORE))
    assert made.settle(0, {}) == ()
    assert made.trained == {0: 0, 1: 0, 2: 0, 3: 0}
