"""What the kernel works on: one array of named records a kind. Times in virtual seconds, lengths in tokens, floats where a
fluid quantity is meant."""

from typing import Any, NamedTuple

import numpy as np

NEVER = 1e30
DIRTY = -1.0
"""In `upcoming`: this engine has to be looked at again."""
NOBODY = -1

UNBOUND, WAITING, RUNNING, IN_TOOL, DONE = range(5)
"""Phases of a trajectory: no engine; in an engine's queue; decoding; its tool runs; over."""

REACHED, ASKS_PLACE, ASKS_TURN, STUCK = range(4)
"""Why the kernel returns: the version asked for is there; `run.asks` needs an engine, before its first turn or after a tool
call; nothing can happen any more."""

TRAJECTORY = np.dtype(
    [
        ("group", np.int64),
        ("first_turn", np.int64),
        ("turns", np.int64),
        ("turn", np.int64),
        ("phase", np.int64),
        ("engine", np.int64),
        ("held", np.float64),  # context computed so far; while decoding, without the turn's own tokens
        ("arriving", np.float64),  # tokens to prefill before decoding goes on
        ("left", np.float64),  # tokens to decode until the turn ends
        ("began", np.float64),  # the engine's `decoded` when this turn was admitted
        ("first_token", np.float64),  # and when it decodes, after its chunks
        ("admitted", np.int64),  # order of admission, for preemption
        ("cached", np.int64),  # 1 while its prefix lies unused on its engine
        ("older", np.int64),
        ("newer", np.int64),  # neighbours in the engine's list of unused prefixes
        ("behind", np.int64),  # next in the engine's queue
        ("promised", np.float64),  # expected context charged to the engine
        ("version", np.int64),  # policy version at its first token
        ("generated", np.float64),
        ("moves", np.int64),
        ("last_tp", np.int64),  # degree of the engine that ended it
        ("work", np.float64),  # training FLOP
        ("tokens", np.float64),  # prompt, generated and tool tokens
        ("started_s", np.float64),
        ("finished_s", np.float64),
    ]
)
GROUP = np.dtype(
    [
        ("version", np.int64),  # at its start; -1 before
        ("finished", np.int64),  # samples done
        ("step", np.int64),  # the step that trains it; -1 before
    ]
)
ENGINE = np.dtype(
    [
        ("a_s", np.float64),
        ("b_s", np.float64),
        ("c_s", np.float64),
        ("prefill_s", np.float64),
        ("prefill_pair_s", np.float64),
        ("kv_tokens", np.float64),
        ("tp", np.int64),
        ("alive", np.int64),
        ("opened_s", np.float64),  # serves from then on
        ("clock_s", np.float64),  # ahead of now while it prefills or is paused
        ("decoded", np.float64),  # tokens that a sequence running from the start would have
        ("context", np.float64),  # of all running sequences
        ("running", np.int64),
        ("bound", np.int64),
        ("promised", np.float64),
        ("prefixes", np.float64),  # tokens of unused prefixes
        ("oldest", np.int64),
        ("newest", np.int64),
        ("first", np.int64),
        ("last", np.int64),  # ends of its queue
        ("since_s", np.float64),  # when it was opened, for the time account
        ("decode_s", np.float64),
        ("decode_steps", np.float64),  # of those seconds, as the next two
        ("decode_tokens", np.float64),
        ("decode_context", np.float64),  # tokens of context that all steps read
        ("prefilled_s", np.float64),
        ("reprefilled_s", np.float64),
        ("paused_s", np.float64),
        ("pause_end_s", np.float64),
        ("pause_s", np.float64),  # end and length of the newest pause, which may lie ahead
    ]
)
PACE = np.dtype(
    [
        ("batch", np.int64),
        ("group_size", np.int64),
        ("staleness", np.int64),
        ("age_slack", np.int64),
        ("streamed", np.int64),
        ("colocated", np.int64),
        ("most_calls_first", np.int64),  # order of an engine's queue: more finished tool calls first
        ("routed", np.int64),  # engines are chosen by whoever drives the kernel
        ("stay_margin", np.float64),  # trajectories a GPU by which another engine must be emptier
        ("kv_fill", np.float64),
        ("most_running", np.int64),
        ("chunk_tokens", np.float64),
        ("recompute_kv", np.int64),  # at a publication
        ("flops", np.float64),  # of the trainer, achieved
        ("fixed_s", np.float64),
        ("publication_s", np.float64),  # the trainer waits
        ("published_s", np.float64),  # until the next publication may begin
        ("pause_s", np.float64),  # the engines stand still
        ("switch_s", np.float64),  # colocated: from engines to trainer and back
    ]
)
RUN = np.dtype(
    [
        ("now_s", np.float64),
        ("version", np.int64),
        ("issued", np.int64),
        ("unplaced", np.int64),  # first issued trajectory that never had an engine
        ("displaced", np.int64),  # how many lost theirs
        ("room", np.int64),  # 0 after a vain look for a place
        ("order", np.int64),
        ("tools", np.int64),  # size of the heap of running tools
        ("asks", np.int64),
        ("check", np.int64),  # a group finished or the trainer is free
        ("oldest", np.int64),  # first group that is not trained
        ("in_step", np.int64),
        ("work", np.float64),  # taken and not yet trained, FLOP
        ("busy", np.int64),
        ("train_end_s", np.float64),
        ("trainer_open_s", np.float64),
        ("published_s", np.float64),  # when the newest publication ends
        ("free_s", np.float64),  # since when the trainer waits
        ("age_since_s", np.float64),  # since when only an age limit keeps it waiting; NEVER when not
        ("mean_context", np.float64),
        ("preemptions", np.int64),
        ("moves", np.int64),
        ("moved_tokens", np.float64),
        ("reprefilled_tokens", np.float64),
        ("lost_tokens", np.float64),
        ("next_failure", np.int64),
        ("events", np.int64),
    ]
)
STEP = np.dtype(
    [
        ("began_s", np.float64),  # of its first training
        ("ended_s", np.float64),
        ("train_s", np.float64),
        ("waited_s", np.float64),
        ("waited_age_s", np.float64),
        ("blocked_s", np.float64),  # waits for publication or a transition
        ("trajectories", np.int64),
        ("generated", np.float64),
        ("tokens", np.float64),
        ("staleness", np.float64),  # sum over trajectories
        ("oldest_staleness", np.int64),
        ("longest_s", np.float64),  # slowest trajectory from first token to last
        ("latency_s", np.float64),  # sum over trajectories
    ]
)


class KernelState(NamedTuple):
    """Arrays shared by all compiled functions. `run` and `pace` have one record."""

    generated: Any
    """`[turns]`, as the next two; turns of one trajectory lie together."""
    returned: Any
    tool_s: Any
    trajectories: Any
    groups: Any
    engines: Any
    pace: Any
    run: Any
    steps: Any
    upcoming: Any
    """`[engines]` time of the next event, `DIRTY`, or `NEVER`."""
    running: Any
    """`[engines, most]` trajectory numbers."""
    finishes: Any
    """As `running`: the engine's `decoded` at which the turn ends."""
    tool_ends: Any
    """Heap."""
    tool_owners: Any
    displaced: Any
    failures: Any
    """`[n, 3]`: time, engine, seconds until it serves again."""


def records(kind: np.dtype[Any], num: int) -> Any:
    """Zeroed records that compiled and plain Python code address alike."""
    return np.zeros(num, dtype=kind).view(np.recarray)
