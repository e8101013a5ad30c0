"""The kernel and the runtime's pure classes side by side: who may start, trains next, gets a place, and on which engine."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.ports.routing import EngineLoad
from libra_core.routing.least_loaded import LeastLoaded
from libra_core.runtime.rollout.admission import AdmissionState, StepWindow, groups_to_issue, select_groups
from libra_core.runtime.rollout.kv_budget import ContextHistory, KvLedger
from libra_core.simulation.kernel import coordinator, trainer
from libra_core.simulation.kernel.records import ENGINE, GROUP, NOBODY, PACE, RUN, STEP, TRAJECTORY, KernelState, records
from libra_core.types.ids import EngineId, TrajectoryId

SIZE = 2
"""Samples of a group."""
MOST = 24


def interpreted(function):
    """The kernel's source without its compilation, also of what it calls: quick to start, and the same arithmetic."""
    inner = function.py_func
    names = {name: getattr(value, "py_func", value) for name, value in inner.__globals__.items()}
    for name, value in list(names.items()):
        if callable(value) and getattr(value, "__module__", "").startswith("libra_core.simulation.kernel"):
            names[name] = type(value)(value.__code__, names, name) if hasattr(value, "__code__") else value
    return type(inner)(inner.__code__, names, inner.__name__)


ISSUE, SELECT = interpreted(coordinator.issue), interpreted(trainer._select)
HAS_ROOM, BIND, UNBIND = (interpreted(f) for f in (coordinator.has_room, coordinator._bind, coordinator.unbind))
NOTE_LENGTH, EMPTIEST, HOME = (
    interpreted(f) for f in (coordinator.note_length, coordinator.emptiest, coordinator.home_or_emptier)
)


def state(engines: int = 1) -> KernelState:
    fields = dict.fromkeys(KernelState._fields, np.zeros(0))
    kinds = {"trajectories": (TRAJECTORY, MOST * SIZE), "groups": (GROUP, MOST), "engines": (ENGINE, engines)}
    kinds |= {"pace": (PACE, 1), "run": (RUN, 1), "steps": (STEP, 1)}
    made = KernelState(**(fields | {name: records(kind, num) for name, (kind, num) in kinds.items()}))
    made.groups.version[:] = made.groups.step[:] = -1
    made.trajectories.engine[:] = NOBODY
    made.engines.alive[:] = made.engines.tp[:] = 1
    made.pace[0].group_size = SIZE
    return made


@given(batch=st.integers(1, 5), staleness=st.integers(0, 3), versions=st.lists(st.integers(0, 2), max_size=6))
def test_as_many_groups_are_admitted_at_each_version(batch: int, staleness: int, versions: list[int]) -> None:
    s, version, issued = state(), 0, 0
    s.pace[0].batch, s.pace[0].staleness = batch * SIZE, staleness
    for ahead in versions:
        version += ahead
        s.run[0].version = version
        ISSUE(s)
        before = AdmissionState(issued=issued, written_off=0, version=version)
        issued += min(groups_to_issue(before, groups_per_step=batch, staleness=staleness, total_steps=1000), MOST - issued)
        assert s.run[0].issued == issued * SIZE


@given(
    ages=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=10),
    batch=st.integers(1, 4),
    staleness=st.integers(0, 3),
    slack=st.integers(0, 2),
)
def test_a_step_takes_the_same_groups(ages: list[tuple[int, bool]], batch: int, staleness: int, slack: int) -> None:
    """Groups start in the order of their versions, as admission has it."""
    s, version = state(), 3
    s.run[0].version, s.run[0].issued = version, len(ages) * SIZE
    s.pace[0].batch, s.pace[0].staleness, s.pace[0].age_slack = batch * SIZE, staleness, slack
    groups = [(3 - age, done) for age, done in sorted(ages, reverse=True)]
    for g, (started, done) in enumerate(groups):
        s.groups[g].version, s.groups[g].finished = started, SIZE * done
    taken: list[int] = []
    while len(taken) < batch and (chosen := SELECT(s, batch - len(taken))[0]) != NOBODY:
        s.groups[chosen].step = version
        taken.append(chosen)
    ready = {g: started for g, (started, done) in enumerate(groups) if done}
    running = {g: started for g, (started, done) in enumerate(groups) if not done}
    window = StepWindow(step=version, groups_per_step=batch, staleness=staleness, age_slack=slack)
    assert tuple(taken) == select_groups(ready, running, window, places=batch).chosen


@settings(max_examples=60)
@given(
    prior=st.integers(10, 400),
    cache=st.integers(100, 2000),
    events=st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 500)), max_size=40),
)
def test_the_ledger_and_the_kernel_admit_the_same_trajectories(
    prior: int, cache: int, events: list[tuple[bool, int, int]]
) -> None:
    """The kernel's mean starts at the prior; the ledger's first length takes its place, so it is given the same."""
    history = ContextHistory(prior_tokens=prior)
    history.add("", prior)
    fill, engine = 0.7, EngineId("0")
    ledger = KvLedger(fill=fill, history=history)
    ledger.add_engine(engine, cache)
    s = state()
    s.engines[0].kv_tokens, s.pace[0].kv_fill, s.run[0].mean_context = cache, fill, prior
    for ends, i, tokens in events:
        name, bound = TrajectoryId(str(i)), s.trajectories[i].engine != NOBODY
        s.trajectories[i].held = tokens
        if bound and ends:
            UNBIND(s, i)
            NOTE_LENGTH(s, i)
            ledger.release(name, "", tokens)
        elif not bound:
            near = abs(s.engines[0].promised + history.expected("", tokens) - fill * cache) < 1e-6
            room = bool(HAS_ROOM(s, i, 0))
            assert near or room == ledger.has_room(engine, "", tokens)
            if room:
                BIND(s, i, 0)
                ledger.bind(name, engine, "", tokens)
        assert (ledger.engine_of(name) is not None) == (s.trajectories[i].engine != NOBODY)


@given(
    engines=st.lists(st.tuples(st.sampled_from((1, 2, 4)), st.integers(0, 60)), min_size=1, max_size=5),
    home=st.integers(0, 4),
    margin=st.integers(1, 12),
)
def test_a_turn_gets_the_same_engine(engines: list[tuple[int, int]], home: int, margin: int) -> None:
    """Up to ties, which the kernel gives to the first engine and the policy to any."""
    s = state(len(engines))
    home %= len(engines)
    for e, (tp, bound) in enumerate(engines):
        s.engines[e].tp, s.engines[e].bound, s.engines[e].kv_tokens = tp, bound, 1e9
    s.pace[0].kv_fill, s.pace[0].stay_margin = 1.0, margin
    loads = [EngineLoad(engine_id=EngineId(str(e)), tp=tp, in_flight=bound, bucket=0) for e, (tp, bound) in enumerate(engines)]
    policy = LeastLoaded(0, move_margin=margin)
    for current, chosen in ((None, EMPTIEST(s, 0)), (home, None)):
        if current is not None:
            s.trajectories[0].engine = current
            chosen = HOME(s, 0)
        turn = SimpleNamespace(current=None if current is None else EngineId(str(current)))
        theirs = int(policy.choose(turn, loads))
        load = [bound / tp for tp, bound in engines]
        assert load[theirs] == load[chosen]
        assert current is None or (theirs == current) == (chosen == current)
