"""The staleness bound holds for any order in which groups finish, and no step waits for more groups than it can train."""

from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.runtime.rollout.admission import (
    AdmissionState,
    PromptCursor,
    Selection,
    StepWindow,
    groups_to_issue,
    select_groups,
)


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


def window(step: int, *, groups_per_step: int = 2, staleness: int = 1, age_slack: int = 0) -> StepWindow:
    return StepWindow(step=step, groups_per_step=groups_per_step, staleness=staleness, age_slack=age_slack)


def test_a_group_at_its_age_limit_keeps_its_place_although_others_are_ready() -> None:
    selection = select_groups({1: 2, 2: 2, 3: 2}, {0: 1}, window(2), places=2)
    assert selection.chosen == (1,)
    assert selection.late == (0,)


def test_a_young_group_is_not_waited_for() -> None:
    assert select_groups({0: 1, 1: 2}, {2: 2}, window(2), places=2).chosen == (0, 1)


def test_age_slack_lets_the_step_go_on_without_the_late_group() -> None:
    selection = select_groups({1: 2, 2: 2, 3: 2}, {0: 1}, window(2, age_slack=1), places=2)
    assert selection.chosen == (1, 2)
    assert selection.late == ()


def test_a_step_with_too_few_groups_names_those_at_their_limit() -> None:
    assert select_groups({}, {4: 1, 5: 2}, window(2), places=2) == Selection(chosen=(), late=(4,))


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    staleness=st.integers(min_value=0, max_value=3),
    age_slack=st.integers(min_value=0, max_value=2),
    groups_per_step=st.integers(min_value=1, max_value=5),
    steps=st.integers(min_value=1, max_value=12),
)
def test_any_finishing_order_keeps_the_bound_and_trains_every_group_once(
    data: st.DataObject, staleness: int, age_slack: int, groups_per_step: int, steps: int
) -> None:
    issued, trained = 0, []
    ready: dict[int, int] = {}
    running: dict[int, int] = {}
    for step in range(steps):
        state = AdmissionState(issued=issued, written_off=0, version=step)
        for _ in range(groups_to_issue(state, groups_per_step=groups_per_step, staleness=staleness, total_steps=steps)):
            running[issued] = step
            issued += 1
        places = groups_per_step
        here = window(step, groups_per_step=groups_per_step, staleness=staleness, age_slack=age_slack)
        while places:
            for index in select_groups(ready, running, here, places=places).chosen:
                assert step - ready.pop(index) <= staleness + age_slack
                trained.append(index)
                places -= 1
            if places:
                assert running, "a step waits although nothing runs"
                finished = data.draw(st.sampled_from(sorted(running)))
                ready[finished] = running.pop(finished)
    assert sorted(trained) == list(range(steps * groups_per_step))


@given(st.sets(st.integers(min_value=0, max_value=30)), st.integers(min_value=1, max_value=10))
def test_a_resumed_run_issues_exactly_what_was_not_trained(trained: set[int], count: int) -> None:
    stream = iter(PromptCursor.after(trained).indices())
    issued = [next(stream) for _ in range(count)]
    assert issued == [i for i in range(max(trained, default=0) + count + 31) if i not in trained][:count]
