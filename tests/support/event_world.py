"""A compact event simulation of asynchronous agentic RL: the truth that plans are scored against.

It shares no code and no numbers with `libra_core`: engines decode fluidly between events at `a + b·batch + c·context`, prefill
new tokens between steps, hold at most `slots` trajectories (late binding, first come first served); a trajectory keeps its slot
and its prefix while tools run. Groups are admitted under the staleness bound, trained within the age bound, whole or streamed.
"""

import heapq
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit

NEVER = 1e30
NOW, TRAIN_END = range(2)
VERSION, BOUND, OLDEST, IN_STEP, BUSY, ENDING = range(6)


@dataclass(frozen=True, slots=True)
class World:
    """Trajectories in the order of admission; turns of one after those of the other."""

    prompt: np.ndarray
    first_turn: np.ndarray
    turns: np.ndarray
    generated: np.ndarray
    """Per turn, as the next two."""
    returned: np.ndarray
    tool_s: np.ndarray
    train_s: np.ndarray
    """`[n]` seconds that the trainer takes for each, on the plan's GPUs."""


@dataclass(frozen=True, slots=True)
class Fleet:
    a_s: float
    b_s: float
    c_s: float
    prefill_s: float
    prefill_pair_s: float
    engines: int
    slots: int
    most_running: int = 256


@dataclass(frozen=True, slots=True)
class Pace:
    batch: int
    group: int
    staleness: int
    slack: int
    streamed: bool
    steps: int
    fixed_s: float = 4.0
    publication_s: float = 4.0


class State(NamedTuple):
    """Arrays that the compiled functions share. `t` and `n` hold the scalars named above."""

    prompt: np.ndarray
    first_turn: np.ndarray
    turns: np.ndarray
    generated: np.ndarray
    returned: np.ndarray
    tool_s: np.ndarray
    train_s: np.ndarray
    law: np.ndarray
    """a, b, c, prefill, prefill pair, fixed, publication."""
    shape: np.ndarray
    """Slots, batch, group, staleness, slack, streamed."""
    t: np.ndarray
    n: np.ndarray
    turn: np.ndarray
    held: np.ndarray
    arriving: np.ndarray
    finish: np.ndarray
    home: np.ndarray
    clock: np.ndarray
    """Of an engine; ahead of now while it prefills or loads weights."""
    decoded: np.ndarray
    context: np.ndarray
    batch: np.ndarray
    taken: np.ndarray
    running: np.ndarray
    queue: np.ndarray
    queued: np.ndarray
    upcoming: np.ndarray
    """Next end of a turn on an engine; -1 when it must be looked at again."""
    done: np.ndarray
    trained: np.ndarray
    started: np.ndarray


def iteration_s(world: World, fleet: Fleet, pace: Pace, *, skip: int = 4) -> float:
    """Mean seconds per optimizer step once the first `skip` are over."""
    ends = _run(_state(world, fleet, pace), pace.steps)
    return float((ends[-1] - ends[skip - 1]) / (pace.steps - skip))


def _state(world: World, fleet: Fleet, pace: Pace) -> State:
    num, engines, groups = world.prompt.size, fleet.engines, world.prompt.size // pace.group + 1
    law = [fleet.a_s, fleet.b_s, fleet.c_s, fleet.prefill_s, fleet.prefill_pair_s, pace.fixed_s, pace.publication_s]
    shape = [fleet.slots, pace.batch, pace.group, pace.staleness, pace.slack, int(pace.streamed)]
    given: dict[str, Any] = {name: getattr(world, name) for name in World.__slots__}
    floats = {name: np.zeros(num) for name in ("held", "finish")} | {
        name: np.zeros(engines) for name in ("clock", "decoded", "context")
    }
    counts = {name: np.zeros(engines, np.int64) for name in ("batch", "taken", "queued")}
    return State(
        **given,
        **floats,
        **counts,
        law=np.array(law),
        shape=np.array(shape, dtype=np.int64),
        t=np.array([0.0, NEVER]),
        n=np.zeros(6, np.int64),
        turn=np.zeros(num, np.int64),
        arriving=world.prompt.copy(),
        home=np.full(num, -1, np.int64),
        running=np.zeros((engines, fleet.most_running), np.int64),
        queue=np.zeros((engines, fleet.slots + 1), np.int64),
        upcoming=np.full(engines, NEVER),
        done=np.zeros(groups, np.int64),
        trained=np.zeros(groups, np.bool_),
        started=np.zeros(groups, np.int64),
    )


@njit(cache=True)
def _run(s, steps):
    tools = [(NEVER, -1)]
    ends = np.zeros(steps)
    while s.n[VERSION] < steps:
        _bind(s)
        for engine in range(s.clock.size):
            if s.upcoming[engine] < 0:
                _serve(s, engine)
        if s.n[BUSY] == 0:
            _start_training(s)
        engine = np.argmin(s.upcoming)
        s.t[NOW] = max(s.t[NOW], min(s.upcoming[engine], min(tools[0][0], s.t[TRAIN_END])))
        if s.t[TRAIN_END] <= s.t[NOW]:
            _end_training(s, ends)
        elif tools[0][0] <= s.t[NOW]:
            _enqueue(s, heapq.heappop(tools)[1])
        else:
            _end_turn(s, engine, tools)
    return ends


@njit(cache=True)
def _bind(s):
    """A trajectory starts when the bound admits it and a slot is free."""
    batch, size = s.shape[1], s.shape[2]
    limit = min((s.shape[3] + s.n[VERSION] + 1) * batch, s.prompt.size)
    while s.n[BOUND] < limit:
        item, engine = s.n[BOUND], np.argmin(s.taken)
        if s.taken[engine] >= s.shape[0]:
            return
        s.home[item] = engine
        s.taken[engine] += 1
        if item % size == 0:
            s.started[item // size] = max(0, item // batch - s.shape[3])
        _enqueue(s, item)
        s.n[BOUND] += 1


@njit(cache=True)
def _enqueue(s, item):
    engine = s.home[item]
    s.queue[engine, s.queued[engine]] = item
    s.queued[engine] += 1
    s.upcoming[engine] = -1.0


@njit(cache=True)
def _advance(s, engine):
    """Fluid decoding of one engine up to now."""
    waited = s.t[NOW] - s.clock[engine]
    if waited <= 0:
        return
    batch = s.batch[engine]
    if batch > 0:
        step = s.law[0] + s.law[1] * batch + s.law[2] * s.context[engine]
        slope = s.law[2] * batch
        steps = (np.sqrt(step * step + 2 * slope * waited) - step) / slope
        s.decoded[engine] += steps
        s.context[engine] += steps * batch
    s.clock[engine] = s.t[NOW]


@njit(cache=True)
def _serve(s, engine):
    """Prefill what waits, then find the next end of a turn."""
    _advance(s, engine)
    while s.queued[engine] > 0 and s.batch[engine] < s.running.shape[1]:
        item = s.queue[engine, 0]
        s.queue[engine, : s.queued[engine] - 1] = s.queue[engine, 1 : s.queued[engine]].copy()
        s.queued[engine] -= 1
        tokens = s.arriving[item]
        prefill = s.law[3] * tokens + s.law[4] * tokens * (s.held[item] + tokens / 2)
        s.clock[engine] = max(s.clock[engine], s.t[NOW]) + prefill
        s.held[item] += tokens
        s.context[engine] += s.held[item]
        s.finish[item] = s.decoded[engine] + s.generated[s.first_turn[item] + s.turn[item]]
        s.running[engine, s.batch[engine]] = item
        s.batch[engine] += 1
    batch = s.batch[engine]
    if batch == 0:
        s.upcoming[engine] = NEVER
        return
    left = max(s.finish[s.running[engine, :batch]].min() - s.decoded[engine], 0.0)
    step = s.law[0] + s.law[1] * batch + s.law[2] * s.context[engine]
    s.upcoming[engine] = s.clock[engine] + left * step + s.law[2] * batch * left * left / 2


@njit(cache=True)
def _end_turn(s, engine, tools):
    _advance(s, engine)
    batch = s.batch[engine]
    place = np.argmin(s.finish[s.running[engine, :batch]])
    item = s.running[engine, place]
    s.running[engine, place] = s.running[engine, batch - 1]
    s.batch[engine] -= 1
    position = s.first_turn[item] + s.turn[item]
    s.held[item] += s.generated[position]
    s.context[engine] = max(s.context[engine] - s.held[item], 0.0)
    s.turn[item] += 1
    if s.turn[item] == s.turns[item]:
        s.done[item // s.shape[2]] += 1
        s.taken[engine] -= 1
    else:
        s.arriving[item] = s.returned[position]
        heapq.heappush(tools, (s.t[NOW] + s.tool_s[position], item))
    s.upcoming[engine] = -1.0


@njit(cache=True)
def _choose(s):
    """Next group to train, or -1: those at their age bound first, and then they are waited for."""
    size, age = s.shape[2], s.shape[3] + s.shape[4]
    issued = (s.n[BOUND] + size - 1) // size
    urgent, urgent_ready, other = 0, -1, -1
    for group in range(s.n[OLDEST], issued):
        if s.trained[group]:
            continue
        ready = s.done[group] == size
        if s.started[group] + age <= s.n[VERSION]:
            urgent += 1
            if urgent_ready < 0 and ready:
                urgent_ready = group
        elif other < 0 and ready:
            other = group
    if urgent_ready >= 0:
        return urgent_ready
    return other if s.n[IN_STEP] + urgent < s.shape[1] // size else -1


@njit(cache=True)
def _whole_batch_ready(s):
    size, age = s.shape[2], s.shape[3] + s.shape[4]
    ready = 0
    for group in range(s.n[OLDEST], (s.n[BOUND] + size - 1) // size):
        if s.trained[group]:
            continue
        if s.done[group] == size:
            ready += 1
        elif s.started[group] + age <= s.n[VERSION]:
            return False
    return ready >= s.shape[1] // size


@njit(cache=True)
def _start_training(s):
    groups, size, streamed = s.shape[1] // s.shape[2], s.shape[2], s.shape[5] == 1
    if not streamed and not _whole_batch_ready(s):
        return
    work = 0.0
    for _ in range(1 if streamed else groups):
        group = _choose(s)
        if group < 0:
            return
        s.trained[group] = True
        s.n[IN_STEP] += 1
        work += s.train_s[group * size : (group + 1) * size].sum()
    while s.trained[s.n[OLDEST]]:
        s.n[OLDEST] += 1
    s.n[ENDING] = 1 if s.n[IN_STEP] == groups else 0
    s.t[TRAIN_END] = s.t[NOW] + work + (s.law[5] if s.n[ENDING] else 0.0)
    s.n[BUSY] = 1


@njit(cache=True)
def _end_training(s, ends):
    """After the last group of a step the weights are published and every engine pauses."""
    s.t[TRAIN_END] = NEVER
    s.n[BUSY] = 0
    if s.n[ENDING] == 0:
        return
    ends[s.n[VERSION]] = s.t[NOW]
    s.n[VERSION] += 1
    s.n[IN_STEP] = s.n[ENDING] = 0
    for engine in range(s.clock.size):
        _advance(s, engine)
        s.clock[engine] = max(s.clock[engine], s.t[NOW]) + s.law[6]
        s.upcoming[engine] = -1.0
