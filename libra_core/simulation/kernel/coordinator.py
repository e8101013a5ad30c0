"""Admission under the staleness bound, late binding under the share of KV that may be promised, and moves between engines."""

from libra_core.simulation.kernel.compiled import compiled
from libra_core.simulation.kernel.engine import enqueue, forget_prefix
from libra_core.simulation.kernel.records import NOBODY, UNBOUND, KernelState
from libra_core.types.running_mean import NEWEST_WEIGHT


@compiled
def issue(s: KernelState) -> None:
    """Start groups until the bound is reached."""
    run, pace = s.run[0], s.pace[0]
    allowed = min((pace.staleness + run.version + 1) * pace.batch, s.trajectories.size)
    while run.issued < allowed:
        s.groups[run.issued // pace.group_size].version = run.version
        run.issued += pace.group_size
        run.room = 1


@compiled
def next_unbound(s: KernelState) -> int:
    """Those that lost their engine first, then the oldest new one."""
    run = s.run[0]
    if run.displaced > 0:
        oldest = 0
        for place in range(1, run.displaced):
            if s.displaced[place] < s.displaced[oldest]:
                oldest = place
        return s.displaced[oldest]
    return run.unplaced if run.unplaced < run.issued else NOBODY


@compiled
def place(s: KernelState, i: int, e: int) -> None:
    """Bind an unbound trajectory and send its turn."""
    run = s.run[0]
    if i == run.unplaced:
        run.unplaced += 1
    else:
        for position in range(run.displaced):
            if s.displaced[position] == i:
                run.displaced -= 1
                s.displaced[position] = s.displaced[run.displaced]
                break
    _bind(s, i, e)
    enqueue(s, e, i, False)


@compiled
def displace(s: KernelState, i: int) -> None:
    """Back to the coordinator, without a prefix."""
    s.trajectories[i].phase = UNBOUND
    s.displaced[s.run[0].displaced] = i
    s.run[0].displaced += 1
    s.run[0].room = 1


@compiled
def send_turn(s: KernelState, i: int, e: int) -> None:
    """The next turn of a bound trajectory, on its engine or on another one."""
    run, t = s.run[0], s.trajectories[i]
    if e != t.engine:
        run.moves += 1
        run.moved_tokens += t.held
        t.moves += 1
        unbind(s, i)
        _bind(s, i, e)
    else:
        s.engines[e].promised += _expected(s, i) - t.promised
        t.promised = _expected(s, i)
    enqueue(s, e, i, False)


@compiled
def unbind(s: KernelState, i: int) -> None:
    t = s.trajectories[i]
    if t.cached == 1:
        forget_prefix(s, i)
    engine = s.engines[t.engine]
    engine.bound -= 1
    engine.promised = engine.promised - t.promised if engine.bound > 0 else 0.0
    t.engine = NOBODY
    s.run[0].room = 1


@compiled
def note_length(s: KernelState, i: int) -> None:
    run = s.run[0]
    run.mean_context += NEWEST_WEIGHT * (s.trajectories[i].held - run.mean_context)


@compiled
def has_room(s: KernelState, i: int, e: int) -> bool:
    engine = s.engines[e]
    if engine.alive == 0 or engine.opened_s > s.run[0].now_s:
        return False
    return engine.bound == 0 or engine.promised + _expected(s, i) <= s.pace[0].kv_fill * engine.kv_tokens


@compiled
def emptiest(s: KernelState, i: int) -> int:
    """The open engine with room that holds the fewest trajectories a GPU."""
    best, least = NOBODY, 0.0
    for e in range(s.engines.size):
        if has_room(s, i, e):
            load = s.engines[e].bound / s.engines[e].tp
            if best == NOBODY or load < least:
                best, least = e, load
    return best


@compiled
def home_or_emptier(s: KernelState, i: int) -> int:
    """Stay on the engine that holds the prefix, unless another one is emptier by the margin."""
    home = s.trajectories[i].engine
    if s.pace[0].stay_margin <= 0:
        return home
    other = emptiest(s, i)
    if other == NOBODY:
        return home
    load, least = s.engines[home].bound / s.engines[home].tp, s.engines[other].bound / s.engines[other].tp
    return other if load - least >= s.pace[0].stay_margin else home


@compiled
def _bind(s: KernelState, i: int, e: int) -> None:
    t = s.trajectories[i]
    t.engine = e
    t.promised = _expected(s, i)
    s.engines[e].bound += 1
    s.engines[e].promised += t.promised


@compiled
def _expected(s: KernelState, i: int) -> float:
    t = s.trajectories[i]
    return max(s.run[0].mean_context, t.held + t.arriving)
