"""The staleness bound holds for any order in which groups finish, and no step waits for more groups than it can train."""

from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.runtime.admission import AdmissionState, PromptCursor, choose_batch, groups_to_issue


def issue(version: int, issued: int, *, written_off: int = 0, staleness: int = 1, total_steps: int = 100) -> int:
    state = AdmissionState(issued=issued, written_off=written_off, version=version)
    return groups_to_issue(state, groups_per_step=4, staleness=staleness, total_steps=total_steps)


def test_synchronous_mode_issues_one_batch_per_version() -> None:
    assert issue(0, 0, staleness=0) == 4
    assert issue(0, 4, staleness=0) == 0
    assert issue(1, 4, staleness=0) == 4


def test_staleness_one_runs_one_batch_ahead() -> None:
    assert issue(0, 0) == 8
    assert issue(0, 8) == 0


def test_a_written_off_group_is_replaced() -> None:
    assert issue(0, 8, written_off=1) == 1


def test_the_run_issues_no_group_that_no_step_will_train() -> None:
    assert issue(9, 40, total_steps=10) == 0


def test_a_group_at_its_age_limit_is_waited_for_although_others_are_ready() -> None:
    choice = choose_batch({1: 2, 2: 2, 3: 2}, {0: 1}, step=2, groups_per_step=2, staleness=1)
    assert not choice.complete
    assert choice.late == (0,)


def test_a_young_group_is_not_waited_for() -> None:
    choice = choose_batch({0: 1, 1: 2}, {2: 2}, step=2, groups_per_step=2, staleness=1)
    assert choice.chosen == (0, 1)


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    staleness=st.integers(min_value=0, max_value=3),
    groups_per_step=st.integers(min_value=1, max_value=5),
    steps=st.integers(min_value=1, max_value=12),
)
def test_any_finishing_order_keeps_the_bound_and_trains_every_group_once(
    data: st.DataObject, staleness: int, groups_per_step: int, steps: int
) -> None:
    issued, trained = 0, []
    ready: dict[int, int] = {}
    running: dict[int, int] = {}
    for step in range(steps):
        state = AdmissionState(issued=issued, written_off=0, version=step)
        for _ in range(groups_to_issue(state, groups_per_step=groups_per_step, staleness=staleness, total_steps=steps)):
            running[issued] = step
            issued += 1
        while True:
            choice = choose_batch(ready, running, step=step, groups_per_step=groups_per_step, staleness=staleness)
            if choice.complete:
                break
            assert running, "a step waits although nothing runs"
            finished = data.draw(st.sampled_from(sorted(running)))
            ready[finished] = running.pop(finished)
        assert len(choice.chosen) == groups_per_step
        for index in choice.chosen:
            assert step - ready.pop(index) <= staleness
            trained.append(index)
    assert sorted(trained) == list(range(steps * groups_per_step))


@given(st.sets(st.integers(min_value=0, max_value=30)), st.integers(min_value=1, max_value=10))
def test_a_resumed_run_issues_exactly_what_was_not_trained(trained: set[int], count: int) -> None:
    stream = iter(PromptCursor.after(trained).indices())
    issued = [next(stream) for _ in range(count)]
    assert issued == [i for i in range(max(trained, default=0) + count + 31) if i not in trained][:count]
