"""A compact event simulation of asynchronous agentic RL: the truth that plans are scored against.

It shares no code and no numbers with `libra_core`: engines decode fluidly between events at `a + b·batch + c·context`, prefill
new tokens between steps, hold at most `slots` trajectories (late binding, first come first served); a trajectory keeps its slot
and its prefix while tools run. Groups are admitted under the staleness bound, trained within the age bound, whole or streamed.
Engines of one class are alike; each trajectory is served by the class that its router chose, right or wrong. Colocated, the
engines stand still while the trainer works and go on with what they hold.
"""

import heapq
from collections.abc import Sequence
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
    kind: np.ndarray
    """`[n]` class of engines that serves each."""


@dataclass(frozen=True, slots=True)
class Engines:
    """One class of the fleet."""

    a_s: float
    b_s: float
    c_s: float
    prefill_s: float
    prefill_pair_s: float
    engines: int
    slots: int


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
    colocated: bool = False
    """Both sides on the same GPUs; `publication_s` is then the switch to the trainer and back."""


_MOST_RUNNING = 256


class State(NamedTuple):
    """Arrays that the compiled functions share. `t` and `n` hold the scalars named above."""

    prompt: np.ndarray
    first_turn: np.ndarray
    turns: np.ndarray
    generated: np.ndarray
    returned: np.ndarray
    tool_s: np.ndarray
    train_s: np.ndarray
    kind: np.ndarray
    law: np.ndarray
    """`[engines, 5]`: a, b, c, prefill, prefill pair."""
    slots: np.ndarray
    paid: np.ndarray
    """Fixed, publication."""
    shape: np.ndarray
    """Batch, group, staleness, slack, streamed, colocated."""
    order: np.ndarray
    """Trajectories by class, then by admission; class k has `first_item[k]` to `first_item[k + 1]`."""
    first_item: np.ndarray
    next_item: np.ndarray
    first_engine: np.ndarray
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


def iteration_s(world: World, fleet: Sequence[Engines], pace: Pace, *, skip: int = 4) -> float:
    """Mean seconds per optimizer step once the first `skip` are over."""
    ends = step_ends_s(world, fleet, pace)
    return float((ends[-1] - ends[skip - 1]) / (pace.steps - skip))


def step_ends_s(world: World, fleet: Sequence[Engines], pace: Pace) -> np.ndarray:
    """`[steps]` when each optimizer step ended."""
    return _run(_state(world, fleet, pace), pace.steps)


def _state(world: World, fleet: Sequence[Engines], pace: Pace) -> State:
    num, groups = world.prompt.size, world.prompt.size // pace.group + 1
    each = [item for item in fleet for _ in range(item.engines)]
    slots = [item.slots for item in each]
    given: dict[str, Any] = {name: getattr(world, name) for name in World.__slots__}
    floats = {name: np.zeros(num) for name in ("held", "finish")} | {
        name: np.zeros(len(each)) for name in ("clock", "decoded", "context")
    }
    counts = {name: np.zeros(len(each), np.int64) for name in ("batch", "taken", "queued")}
    first_item = np.searchsorted(np.sort(world.kind), np.arange(len(fleet) + 1))
    admitted_at = np.arange(groups) * pace.group // pace.batch - pace.staleness
    return State(
        **given,
        **floats,
        **counts,
        law=np.array([[item.a_s, item.b_s, item.c_s, item.prefill_s, item.prefill_pair_s] for item in each]),
        slots=np.array(slots, dtype=np.int64),
        paid=np.array([pace.fixed_s, pace.publication_s]),
        shape=np.array([pace.batch, pace.group, pace.staleness, pace.slack, int(pace.streamed), int(pace.colocated)]),
        order=np.argsort(world.kind, kind="stable"),
        first_item=first_item,
        next_item=first_item[:-1].copy(),
        first_engine=np.cumsum([0, *(item.engines for item in fleet)]),
        t=np.array([0.0, NEVER]),
        n=np.zeros(6, np.int64),
        turn=np.zeros(num, np.int64),
        arriving=world.prompt.copy(),
        home=np.full(num, -1, np.int64),
        running=np.zeros((len(each), _MOST_RUNNING), np.int64),
        queue=np.zeros((len(each), max(slots) + 1), np.int64),
        upcoming=np.full(len(each), NEVER),
        done=np.zeros(groups, np.int64),
        trained=np.zeros(groups, np.bool_),
        started=np.maximum(admitted_at, 0),
    )


@njit(cache=True)
def _run(s, steps):
    tools = [(NEVER, -1)]
    ends = np.zeros(steps)
    while s.n[VERSION] < steps:
        _bind(s)
        if s.n[BUSY] == 0:
            _start_training(s)
        for engine in range(s.clock.size):
            if s.upcoming[engine] < 0:
                _serve(s, engine)
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
    """A trajectory starts when the bound admits it and a slot of its class is free."""
    limit = min((s.shape[2] + s.n[VERSION] + 1) * s.shape[0], s.prompt.size)
    for kind in range(s.next_item.size):
        first, last = s.first_engine[kind], s.first_engine[kind + 1]
        while s.next_item[kind] < s.first_item[kind + 1]:
            item = s.order[s.next_item[kind]]
            engine = first + np.argmin(s.taken[first:last])
            if item >= limit or s.taken[engine] >= s.slots[engine]:
                break
            s.home[item] = engine
            s.taken[engine] += 1
            _enqueue(s, item)
            s.next_item[kind] += 1
            s.n[BOUND] = max(s.n[BOUND], item + 1)


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
        a, b, c = s.law[engine, 0], s.law[engine, 1], s.law[engine, 2]
        step = a + b * batch + c * s.context[engine]
        slope = c * batch
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
        prefill = s.law[engine, 3] * tokens + s.law[engine, 4] * tokens * (s.held[item] + tokens / 2)
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
    a, b, c = s.law[engine, 0], s.law[engine, 1], s.law[engine, 2]
    step = a + b * batch + c * s.context[engine]
    s.upcoming[engine] = s.clock[engine] + left * step + c * batch * left * left / 2


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
        s.done[item // s.shape[1]] += 1
        s.taken[engine] -= 1
    else:
        s.arriving[item] = s.returned[position]
        heapq.heappush(tools, (s.t[NOW] + s.tool_s[position], item))
    s.upcoming[engine] = -1.0


@njit(cache=True)
def _choose(s):
    """Next group to train, or -1: those at their age bound first, and then they are waited for."""
    size, age = s.shape[1], s.shape[2] + s.shape[3]
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
    return other if s.n[IN_STEP] + urgent < s.shape[0] // size else -1


@njit(cache=True)
def _whole_batch_ready(s):
    size, age = s.shape[1], s.shape[2] + s.shape[3]
    ready = 0
    for group in range(s.n[OLDEST], (s.n[BOUND] + size - 1) // size):
        if s.trained[group]:
            continue
        if s.done[group] == size:
            ready += 1
        elif s.started[group] + age <= s.n[VERSION]:
            return False
    return ready >= s.shape[0] // size


@njit(cache=True)
def _start_training(s):
    groups, size, streamed = s.shape[0] // s.shape[1], s.shape[1], s.shape[4] == 1
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
    s.t[TRAIN_END] = s.t[NOW] + work + (s.paid[0] if s.n[ENDING] else 0.0)
    s.n[BUSY] = 1
    if s.shape[5] == 1:
        s.t[TRAIN_END] += s.paid[1]
        _pause(s, s.t[TRAIN_END])


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
    if s.shape[5] == 0:
        _pause(s, s.t[NOW] + s.paid[1])


@njit(cache=True)
def _pause(s, until):
    """No engine decodes before; a prefill that is under way is finished afterwards."""
    for engine in range(s.clock.size):
        _advance(s, engine)
        s.clock[engine] = max(s.clock[engine], s.t[NOW]) + until - s.t[NOW]
        s.upcoming[engine] = -1.0
