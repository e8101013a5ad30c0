"""The trainer: which groups a step takes, whole and streamed steps, publication, turns with the engines in colocated mode.

The choice of groups follows the rule of `libra_core.runtime.rollout.admission`: oldest first, but none so young that an older
one would miss its due step.
"""

from libra_core.simulation.kernel.compiled import compiled
from libra_core.simulation.kernel.engine import pause
from libra_core.simulation.kernel.records import NEVER, NOBODY, KernelState


@compiled
def take_and_train(s: KernelState) -> None:
    """Take ready groups; begin to train them when the step is streamed or its batch is whole."""
    run, pace = s.run[0], s.pace[0]
    run.check = 0
    if run.busy == 1:
        return
    groups = pace.batch // pace.group_size
    while run.in_step < groups:
        chosen, blocked = _select(s, groups - run.in_step)
        _note_age_wait(s, blocked)
        if chosen == NOBODY:
            break
        s.groups[chosen].step = run.version
        run.in_step += 1
        run.work += _enter(s, chosen)
    while run.oldest < s.groups.size and s.groups[run.oldest].step >= 0:
        run.oldest += 1
    if run.work > 0 and (pace.streamed == 1 or run.in_step == groups):
        _begin(s)


@compiled
def _select(s: KernelState, places: int) -> tuple[int, bool]:
    """The next group, and whether only an age limit keeps a ready one out."""
    run, pace = s.run[0], s.pace[0]
    age = pace.staleness + pace.age_slack
    chosen, ready, due = NOBODY, 0, 0
    for g in range(run.oldest, run.issued // pace.group_size):
        group = s.groups[g]
        if group.step >= 0 or group.finished < pace.group_size:
            continue
        ready += 1
        if chosen == NOBODY or group.version + age < due:
            chosen, due = g, group.version + age
    if chosen == NOBODY:
        return NOBODY, False
    for step in range(run.version, due):
        urgent = 0
        for g in range(run.oldest, run.issued // pace.group_size):
            if s.groups[g].step < 0 and s.groups[g].version + age <= step:
                urgent += 1
        if urgent > places - 1 + (step - run.version) * (pace.batch // pace.group_size):
            return NOBODY, ready >= places
    return chosen, False


@compiled
def _note_age_wait(s: KernelState, blocked: bool) -> None:
    run = s.run[0]
    if blocked and run.age_since_s == NEVER:
        run.age_since_s = run.now_s
    elif not blocked and run.age_since_s < NEVER:
        s.steps[run.version].waited_age_s += max(run.now_s - max(run.age_since_s, run.trainer_open_s), 0.0)
        run.age_since_s = NEVER


@compiled
def book_wait(s: KernelState, until_s: float) -> None:
    """Of the trainer, since it was free: what it was kept from training, and what it waited for groups."""
    run = s.run[0]
    step = s.steps[run.version]
    blocked = max(min(until_s, run.trainer_open_s) - run.free_s, 0.0)
    step.blocked_s += blocked
    step.waited_s += max(until_s - run.free_s, 0.0) - blocked
    run.free_s = max(run.free_s, until_s)


@compiled
def close_wait(s: KernelState) -> None:
    """Book what the trainer waited so far; a wait for an age limit goes on."""
    run = s.run[0]
    waits_for_age = run.age_since_s < NEVER
    _note_age_wait(s, False)
    _note_age_wait(s, waits_for_age)
    book_wait(s, run.now_s)


@compiled
def _enter(s: KernelState, g: int) -> float:
    """Book a group into the step's record; returns its training work."""
    run, size = s.run[0], s.pace[0].group_size
    step = s.steps[run.version]
    work = 0.0
    for i in range(g * size, (g + 1) * size):
        t = s.trajectories[i]
        work += t.work
        step.trajectories += 1
        step.generated += t.generated
        step.tokens += t.tokens
        step.staleness += run.version - t.version
        step.oldest_staleness = max(step.oldest_staleness, run.version - t.version)
        step.latency_s += t.finished_s - t.started_s
        step.longest_s = max(step.longest_s, t.finished_s - t.started_s)
    return work


@compiled
def _begin(s: KernelState) -> None:
    run, pace = s.run[0], s.pace[0]
    step = s.steps[run.version]
    begin = max(run.now_s, run.trainer_open_s)
    seconds = run.work / pace.flops
    run.work = 0.0
    whole = run.in_step == pace.batch // pace.group_size
    if whole:
        seconds += pace.fixed_s
    _note_age_wait(s, False)
    book_wait(s, begin)
    if step.began_s == 0.0:
        step.began_s = begin
    step.train_s += seconds
    run.busy = 1
    run.train_end_s = begin + seconds
    if whole and run.published_s > run.train_end_s:  # one publication at a time
        step.blocked_s += run.published_s - run.train_end_s
        run.train_end_s = run.published_s
    if pace.colocated == 1:
        run.train_end_s += pace.switch_s
        step.blocked_s += pace.switch_s
        for e in range(s.engines.size):
            if s.engines[e].alive == 1:
                pause(s, e, run.train_end_s, True)


@compiled
def end_training(s: KernelState) -> None:
    """After the last group of a step its weights are published: the trainer waits, or sends and goes on; the engines pause."""
    run, pace = s.run[0], s.pace[0]
    run.train_end_s = NEVER
    run.busy = 0
    run.free_s = run.now_s
    run.check = 1
    if run.in_step < pace.batch // pace.group_size:
        return
    s.steps[run.version].ended_s = run.now_s
    run.version += 1
    run.in_step = 0
    if pace.colocated == 1:
        return
    run.trainer_open_s = max(run.trainer_open_s, run.now_s + pace.publication_s)
    run.published_s = run.now_s + pace.published_s
    for e in range(s.engines.size):
        if s.engines[e].alive == 1:
            pause(s, e, run.now_s + pace.pause_s, pace.recompute_kv == 1)
