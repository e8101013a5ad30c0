"""The event loop, and what may be done to it from outside: place a trajectory, open and stop engines, hold the trainer."""

from typing import Any

from libra_core.simulation.kernel import coordinator, engine, heap, trainer
from libra_core.simulation.kernel.compiled import compiled
from libra_core.simulation.kernel.records import (
    ASKS_PLACE,
    ASKS_TURN,
    DIRTY,
    DONE,
    IN_TOOL,
    NEVER,
    NOBODY,
    REACHED,
    STUCK,
    UNBOUND,
    WAITING,
    KernelState,
)


@compiled
def advance_to(s: KernelState, version: int) -> int:
    """Run until the trainer stands at `version`, or somebody has to choose an engine."""
    run = s.run[0]
    while True:
        coordinator.issue(s)
        if _bind_waiting(s):
            return ASKS_PLACE
        if run.check == 1:
            trainer.take_and_train(s)
        e, engine_s = _next_engine(s)
        tool_s = s.tool_ends[0] if run.tools > 0 else NEVER
        failure_s = s.failures[run.next_failure, 0] if run.next_failure < s.failures.shape[0] else NEVER
        now_s = min(min(engine_s, tool_s), min(run.train_end_s, failure_s))
        if now_s >= NEVER:
            return STUCK
        run.now_s = max(run.now_s, now_s)
        run.events += 1
        if run.train_end_s == now_s:
            before = run.version
            trainer.end_training(s)
            if run.version > before and run.version >= version:
                return REACHED
        elif tool_s == now_s:
            if _after_tool(s, heap.pop(s)):
                return ASKS_TURN
        elif engine_s == now_s:
            _engine_event(s, e)
        else:
            _fail(s)


@compiled
def _bind_waiting(s: KernelState) -> bool:
    """Place unbound trajectories while there is room; True when somebody else has to choose."""
    run = s.run[0]
    while run.room == 1:
        i = coordinator.next_unbound(s)
        e = NOBODY if i == NOBODY else coordinator.emptiest(s, i)
        if e == NOBODY:
            run.room = 0
        elif s.pace[0].routed == 1:
            run.asks = i
            return True
        else:
            _prepare(s, i)
            coordinator.place(s, i, e)
    return False


@compiled
def _prepare(s: KernelState, i: int) -> None:
    """The first turn of a new trajectory; its prompt is `arriving` already."""
    t = s.trajectories[i]
    if t.turn == 0 and t.left == 0.0:
        t.left = s.generated[t.first_turn]


@compiled
def _next_engine(s: KernelState) -> tuple[int, float]:
    best, least = NOBODY, NEVER
    for e in range(s.upcoming.size):
        if s.upcoming[e] == DIRTY:
            engine.serve(s, e)
        if s.upcoming[e] < least:
            best, least = e, s.upcoming[e]
    return best, least


@compiled
def _after_tool(s: KernelState, i: int) -> bool:
    t = s.trajectories[i]
    if t.engine == NOBODY:
        coordinator.displace(s, i)
        return False
    if s.pace[0].routed == 1:
        s.run[0].asks = i
        return True
    coordinator.send_turn(s, i, coordinator.home_or_emptier(s, i))
    return False


@compiled
def assign(s: KernelState, i: int, e: int) -> None:
    """The answer to `ASKS_PLACE` and `ASKS_TURN`."""
    if s.trajectories[i].engine == NOBODY:
        _prepare(s, i)
        coordinator.place(s, i, e)
    else:
        coordinator.send_turn(s, i, e)


@compiled
def survey(s: KernelState, i: int, into: Any) -> None:
    """For whoever chooses: of each engine whether it has room for the trajectory, its degree, how many it holds."""
    for e in range(s.engines.size):
        asked = s.engines[e]
        into[e, 0] = coordinator.has_room(s, i, e)
        into[e, 1], into[e, 2] = asked.tp, asked.bound


@compiled
def _engine_event(s: KernelState, e: int) -> None:
    """Ends of turns, a full KV cache, or an engine that opens."""
    engine.advance(s, e)
    served = s.engines[e]
    if served.running == 0:
        s.run[0].room = 1
    some = False
    place = 0
    while place < served.running:
        if engine.ended(s, e, place):
            some = True
            _end_turn(s, e, engine.stop_running(s, e, place))
        else:
            place += 1
    if not some and engine.is_full(s, e):
        engine.preempt_latest(s, e)
    s.upcoming[e] = DIRTY


@compiled
def _end_turn(s: KernelState, e: int, i: int) -> None:
    run, t = s.run[0], s.trajectories[i]
    t.held += t.left
    t.generated += t.left
    t.left = 0.0
    t.turn += 1
    if t.turn == t.turns:
        t.phase = DONE
        t.finished_s = run.now_s
        t.last_tp = s.engines[e].tp
        coordinator.unbind(s, i)
        coordinator.note_length(s, i)
        s.groups[t.group].finished += 1
        if s.groups[t.group].finished == s.pace[0].group_size:
            run.check = 1
        return
    next_turn = t.first_turn + t.turn
    t.arriving = s.returned[next_turn - 1]
    t.left = s.generated[next_turn]
    t.phase = IN_TOOL
    engine.keep_prefix(s, i)
    heap.push(s, run.now_s + s.tool_s[next_turn - 1], i)


@compiled
def _fail(s: KernelState) -> None:
    run = s.run[0]
    failure = s.failures[run.next_failure]
    run.next_failure += 1
    e = int(failure[1])
    if e < s.engines.size and s.engines[e].alive == 1:
        _empty(s, e, False)
        engine.cut_short(s, e, run.now_s + failure[2])
        s.upcoming[e] = DIRTY


@compiled
def _empty(s: KernelState, e: int, partial: bool) -> None:
    """Send every trajectory of the engine back; without `partial` the turns under way start again."""
    run, stopped = s.run[0], s.engines[e]
    engine.advance(s, e)
    while stopped.running > 0:
        i = engine.stop_running(s, e, 0)
        if partial:
            engine.keep_partial(s, e, i)
        else:
            run.lost_tokens += stopped.decoded - s.trajectories[i].began
        s.trajectories[i].phase = WAITING
    stopped.first = stopped.last = NOBODY
    for i in range(run.oldest * s.pace[0].group_size, run.issued):
        t = s.trajectories[i]
        if t.engine == e and t.phase != DONE:
            coordinator.unbind(s, i)
            if t.phase == WAITING:
                coordinator.displace(s, i)
            assert t.phase in (UNBOUND, IN_TOOL)
    assert stopped.bound == 0


@compiled
def stop_engine(s: KernelState, e: int) -> None:
    """End an engine; turns under way keep their tokens and are prefilled elsewhere."""
    _empty(s, e, True)
    s.engines[e].alive = 0
    s.upcoming[e] = NEVER


@compiled
def open_engine(s: KernelState, e: int, ready_s: float) -> None:
    """An engine whose laws are set serves from `ready_s` on."""
    run, opened = s.run[0], s.engines[e]
    opened.alive = 1
    opened.opened_s = ready_s
    opened.clock_s = max(ready_s, run.now_s)
    opened.since_s = run.now_s
    opened.paused_s = opened.pause_s = max(ready_s - run.now_s, 0.0)
    opened.pause_end_s = opened.clock_s
    opened.decoded = opened.context = opened.promised = opened.prefixes = 0.0
    opened.decode_s = opened.prefilled_s = opened.reprefilled_s = 0.0
    opened.decode_steps = opened.decode_tokens = opened.decode_context = 0.0
    opened.running = opened.bound = 0
    opened.oldest = opened.newest = opened.first = opened.last = NOBODY
    run.room = 1
    s.upcoming[e] = DIRTY


@compiled
def hold_back(s: KernelState, seconds: float) -> None:
    """The trainer can do nothing for so long: it is being rebuilt, or takes a replica in."""
    run = s.run[0]
    if run.busy == 1:
        run.train_end_s += seconds
        s.steps[run.version].blocked_s += seconds
    else:
        trainer.close_wait(s)
        run.trainer_open_s = max(run.trainer_open_s, run.now_s) + seconds
