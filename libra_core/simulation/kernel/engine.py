"""One engine under continuous batching. Between events all its sequences decode at the same pace, so a look costs O(1).

A step of `b` sequences with `c` tokens of context in total takes `a + b_s·b + c_s·c`; while it decodes `k` tokens each, the
context grows by `b·k`, which makes the elapsed time a quadratic in `k`. A prefill takes the engine for itself; with chunks the
decoding sequences advance one token a chunk meanwhile, which the newcomer's later start accounts for.
"""

import math

from libra_core.simulation.kernel.compiled import compiled
from libra_core.simulation.kernel.records import DIRTY, NEVER, NOBODY, RUNNING, WAITING, KernelState

_FILL_ON_ADMISSION = 0.95
"""An engine admits a sequence up to this share of its KV cache; the rest is for those that grow."""
_TOKEN = 1e-3


@compiled
def prefill_s(s: KernelState, e: int, tokens: float, context: float) -> float:
    engine = s.engines[e]
    return engine.prefill_s * tokens + engine.prefill_pair_s * tokens * (context + tokens / 2)


@compiled
def advance(s: KernelState, e: int) -> None:
    """Fluid decoding up to now."""
    engine, now_s = s.engines[e], s.run[0].now_s
    waited = now_s - engine.clock_s
    if waited <= 0:
        return
    if engine.running > 0:
        step = engine.a_s + engine.b_s * engine.running + engine.c_s * engine.context
        slope = engine.c_s * engine.running
        tokens = 2 * waited / (math.sqrt(step * step + 2 * slope * waited) + step)
        engine.decoded += tokens
        engine.decode_steps += tokens
        engine.decode_tokens += tokens * engine.running
        engine.decode_context += tokens * (engine.context + tokens * engine.running / 2)
        engine.context += tokens * engine.running
        engine.decode_s += waited
    engine.clock_s = now_s


@compiled
def serve(s: KernelState, e: int) -> None:
    """Admit what waits, then find the next event."""
    engine, run = s.engines[e], s.run[0]
    advance(s, e)
    if engine.opened_s > run.now_s:
        s.upcoming[e] = engine.opened_s
        return
    while engine.first != NOBODY and engine.running < s.pace[0].most_running:
        i = _next_waiting(s, e)
        waiting = s.trajectories[i]
        if engine.running > 0 and engine.context + waiting.held + waiting.arriving > _FILL_ON_ADMISSION * engine.kv_tokens:
            break
        _take_from_queue(s, e, i)
        _start(s, e, i)
    if engine.running == 0:
        s.upcoming[e] = NEVER
        return
    left = NEVER
    for place in range(engine.running):
        left = min(left, s.finishes[e, place])
    left = max(left - engine.decoded, 0.0)
    if engine.running > 1:
        left = min(left, max((engine.kv_tokens - engine.context) / engine.running, 0.0) + _TOKEN)
    step = engine.a_s + engine.b_s * engine.running + engine.c_s * engine.context
    s.upcoming[e] = engine.clock_s + left * step + engine.c_s * engine.running * left * left / 2


@compiled
def _start(s: KernelState, e: int, i: int) -> None:
    engine, run, t = s.engines[e], s.run[0], s.trajectories[i]
    if t.cached == 1:
        forget_prefix(s, i)
        seconds = prefill_s(s, e, t.arriving, t.held)
        tokens, again = t.arriving, 0.0
    else:
        tokens, again = t.held + t.arriving, t.held
        seconds = prefill_s(s, e, tokens, 0.0)
    t.held += t.arriving
    t.arriving = 0.0
    _evict(s, e, t.held)
    engine.clock_s = max(engine.clock_s, run.now_s) + seconds
    share = again / tokens if tokens > 0 else 0.0
    engine.prefilled_s += seconds * (1 - share)
    engine.reprefilled_s += seconds * share
    run.reprefilled_tokens += again
    t.began = engine.decoded
    t.first_token = engine.decoded + max(math.ceil(tokens / s.pace[0].chunk_tokens) - 1, 0)
    s.finishes[e, engine.running] = t.first_token + t.left
    t.phase = RUNNING
    t.admitted = run.order
    run.order += 1
    if t.version < 0:
        t.version = run.version
        t.started_s = run.now_s
    engine.context += t.held
    s.running[e, engine.running] = i
    engine.running += 1


@compiled
def stop_running(s: KernelState, e: int, place: int) -> int:
    """Take the sequence at `place` off the engine; returns its number. Its context is still that of the turn's start."""
    engine = s.engines[e]
    i = s.running[e, place]
    engine.running -= 1
    s.running[e, place] = s.running[e, engine.running]
    s.finishes[e, place] = s.finishes[e, engine.running]
    t = s.trajectories[i]
    engine.context -= t.held + engine.decoded - t.began
    if engine.running == 0:
        engine.context = 0.0
    return i


@compiled
def keep_partial(s: KernelState, e: int, i: int) -> None:
    """A sequence that was stopped within a turn keeps the tokens it has."""
    t = s.trajectories[i]
    tokens = min(max(s.engines[e].decoded - t.first_token, 0.0), t.left)
    t.held += tokens
    t.generated += tokens
    t.left -= tokens


@compiled
def preempt_latest(s: KernelState, e: int) -> None:
    """The KV cache is full: the latest admitted gives up its place and will be recomputed."""
    latest = 0
    for place in range(1, s.engines[e].running):
        if s.trajectories[s.running[e, place]].admitted > s.trajectories[s.running[e, latest]].admitted:
            latest = place
    i = stop_running(s, e, latest)
    keep_partial(s, e, i)
    s.run[0].preemptions += 1
    enqueue(s, e, i, True)


@compiled
def enqueue(s: KernelState, e: int, i: int, in_front: bool) -> None:
    engine, t = s.engines[e], s.trajectories[i]
    advance(s, e)
    if t.cached == 1:
        _evict(s, e, 0.0)
    t.phase = WAITING
    if engine.first == NOBODY:
        engine.first = engine.last = i
        t.behind = NOBODY
    elif in_front:
        t.behind = engine.first
        engine.first = i
    else:
        t.behind = NOBODY
        s.trajectories[engine.last].behind = i
        engine.last = i
    s.upcoming[e] = DIRTY


@compiled
def _next_waiting(s: KernelState, e: int) -> int:
    first = s.engines[e].first
    if s.pace[0].most_calls_first == 0:
        return first
    best, i = first, s.trajectories[first].behind
    while i != NOBODY:
        if s.trajectories[i].turn > s.trajectories[best].turn:
            best = i
        i = s.trajectories[i].behind
    return best


@compiled
def _take_from_queue(s: KernelState, e: int, i: int) -> None:
    engine = s.engines[e]
    if engine.first == i:
        engine.first = s.trajectories[i].behind
        if engine.first == NOBODY:
            engine.last = NOBODY
        return
    before = engine.first
    while s.trajectories[before].behind != i:
        before = s.trajectories[before].behind
    s.trajectories[before].behind = s.trajectories[i].behind
    if engine.last == i:
        engine.last = before


@compiled
def keep_prefix(s: KernelState, i: int) -> None:
    """The context stays on the engine, unused, until it is wanted again or evicted; the least recently used goes first."""
    t = s.trajectories[i]
    engine = s.engines[t.engine]
    t.cached = 1
    t.older, t.newer = engine.newest, NOBODY
    if engine.newest != NOBODY:
        s.trajectories[engine.newest].newer = i
    else:
        engine.oldest = i
    engine.newest = i
    engine.prefixes += t.held


@compiled
def forget_prefix(s: KernelState, i: int) -> None:
    t = s.trajectories[i]
    engine = s.engines[t.engine]
    t.cached = 0
    engine.prefixes -= t.held
    if t.older != NOBODY:
        s.trajectories[t.older].newer = t.newer
    else:
        engine.oldest = t.newer
    if t.newer != NOBODY:
        s.trajectories[t.newer].older = t.older
    else:
        engine.newest = t.older


@compiled
def _evict(s: KernelState, e: int, needed: float) -> None:
    engine = s.engines[e]
    while engine.oldest != NOBODY and engine.context + engine.prefixes + needed > engine.kv_tokens:
        forget_prefix(s, engine.oldest)


@compiled
def pause(s: KernelState, e: int, until_s: float, recompute: bool) -> None:
    """Stand still until then; unused prefixes are void afterwards, and with `recompute` the running contexts too."""
    engine, run = s.engines[e], s.run[0]
    advance(s, e)
    while engine.oldest != NOBODY:
        forget_prefix(s, engine.oldest)
    if recompute:
        for place in range(engine.running):
            t = s.trajectories[s.running[e, place]]
            held = t.held + engine.decoded - t.began
            seconds = prefill_s(s, e, held, 0.0)
            run.reprefilled_tokens += held
            engine.reprefilled_s += seconds
            engine.clock_s = max(engine.clock_s, run.now_s) + seconds
    waits = max(until_s - run.now_s, 0.0)
    paused_already = pause_left_s(s, e)
    engine.clock_s = max(engine.clock_s, run.now_s) + waits
    engine.paused_s += waits
    engine.pause_end_s, engine.pause_s = engine.clock_s, waits + paused_already
    s.upcoming[e] = DIRTY


@compiled
def pause_left_s(s: KernelState, e: int) -> float:
    """Of the pauses that were charged beforehand."""
    engine, now_s = s.engines[e], s.run[0].now_s
    return min(max(engine.pause_end_s - now_s, 0.0), engine.pause_s, max(engine.clock_s - now_s, 0.0))


@compiled
def cut_short(s: KernelState, e: int, until_s: float) -> None:
    """It fails: what it would have computed is not counted, and it serves again no sooner than its pause ends."""
    engine, now_s = s.engines[e], s.run[0].now_s
    pause_left = pause_left_s(s, e)
    computing = max(engine.clock_s - now_s, 0.0) - pause_left
    again = min(computing, engine.reprefilled_s)
    engine.reprefilled_s -= again
    engine.prefilled_s -= computing - again
    until_s = max(until_s, now_s + pause_left)
    engine.opened_s = engine.clock_s = engine.pause_end_s = until_s
    engine.paused_s += until_s - now_s - pause_left
    engine.pause_s = until_s - now_s


@compiled
def ended(s: KernelState, e: int, place: int) -> bool:
    return s.finishes[e, place] - s.engines[e].decoded < _TOKEN


@compiled
def is_full(s: KernelState, e: int) -> bool:
    engine = s.engines[e]
    return engine.running > 1 and engine.context >= engine.kv_tokens - _TOKEN
