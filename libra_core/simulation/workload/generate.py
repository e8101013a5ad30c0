"""Trajectories drawn from a law, all at once: heavy tails, samples of a prompt alike, slow tools on hard prompts, drift."""

import numpy as np
from numpy.typing import NDArray

from libra_core.simulation.workload.laws import LengthDrift, WorkloadLaw
from libra_core.simulation.workload.trajectories import Floats, Ints, Trajectories

STATUSES = ("ok", "error", "timeout")
_ROOM_FOR_ANSWER = 600
_SHORTEST_TURN, _SHORTEST_PROMPT = 8.0, 30.0
_MOST_TIMEOUTS = 0.6


def levels(drift: LengthDrift, steps: int) -> Floats:
    """`[steps]` factor on lengths."""
    x = np.arange(steps) / max(steps - 1, 1)
    shapes = {
        "flat": np.zeros(steps),
        "up": x,
        "down": 1 - x,
        "up_down": 1 - np.abs(2 * x - 1),
        "waves": 0.5 - 0.5 * np.cos(2 * np.pi * drift.waves * x),
    }
    return drift.factor ** shapes[drift.kind]


def generate(law: WorkloadLaw, level: Floats, *, groups_per_step: int, group_size: int, seed: int) -> Trajectories:
    """`groups_per_step` groups for each entry of `level` `[steps]`, in order. The same seed gives the same trajectories, and a
    longer run begins with those of a shorter one as far as their levels agree."""
    steps = [_step(law, float(value), groups_per_step, group_size, seed, step) for step, value in enumerate(level)]
    turns = np.concatenate([part.turns for part in steps])
    return Trajectories(
        group_size=group_size,
        prompt_tokens=np.concatenate([part.prompt_tokens for part in steps]),
        first_turn=np.concatenate([[0], np.cumsum(turns)[:-1]]).astype(np.int64),
        turns=turns,
        generated=np.concatenate([part.generated for part in steps]),
        returned=np.concatenate([part.returned for part in steps]),
        tool_s=np.concatenate([part.tool_s for part in steps]),
        status=np.concatenate([part.status for part in steps]),
        level=np.concatenate([part.level for part in steps]),
    )


def _step(law: WorkloadLaw, level: float, groups: int, size: int, seed: int, step: int) -> Trajectories:
    random = np.random.default_rng([seed, step])
    count = groups * size
    share = law.prompt_share.value
    long = _shared(random, groups, size, share)
    correlation = law.turns_tokens_correlation.value
    wordy = correlation * long + np.sqrt(1 - correlation**2) * _shared(random, groups, size, share)
    prompts = np.repeat(random.normal(size=groups), size)
    prompt = np.maximum(law.prompt_tokens.value * np.exp(law.prompt_sigma.value * prompts), _SHORTEST_PROMPT)
    turns_exponent = law.drift.turns_share if law.most_turns.value > 1 else 0.0
    mean_turns = law.turns.value * level**turns_exponent
    drawn = np.rint(mean_turns * np.exp(law.turns_sigma.value * long))
    turns = np.clip(drawn, 1, law.most_turns.value).astype(np.int64)
    per_turn = law.turn_tokens.value * level ** (1 - turns_exponent) * np.exp(law.trajectory_sigma.value * wordy)
    owner = np.repeat(np.arange(count), turns)
    generated = np.maximum(per_turn[owner] * np.exp(law.turn_sigma.value * random.normal(size=owner.size)), _SHORTEST_TURN)
    returned, tool_s, status = _tools(law, random, owner, long, groups)
    return _within_context(law, prompt, turns, (generated, returned, tool_s, status), size, level)


def _shared(random: np.random.Generator, groups: int, size: int, share: float) -> Floats:
    """`[groups·size]` standard normal, of whose variance `share` is common to a group."""
    common = np.repeat(random.normal(size=groups), size)
    return np.sqrt(share) * common + np.sqrt(1 - share) * random.normal(size=groups * size)


def _tools(
    law: WorkloadLaw, random: np.random.Generator, owner: Ints, long: Floats, groups: int
) -> tuple[Floats, Floats, NDArray[np.int8]]:
    """What the tool returns after each turn, how long it takes, and with what status."""
    correlation = law.timeout_length_correlation.value
    own = _shared(random, groups, long.size // groups, law.timeout_prompt_share.value)
    slow = correlation * long + np.sqrt(1 - correlation**2) * own
    sigma = law.timeout_sigma.value
    chance = np.minimum(law.timeout_share.value * np.exp(sigma * slow - sigma**2 / 2), _MOST_TIMEOUTS)
    tokens = law.tool_tokens.value * np.exp(law.tool_tokens_sigma.value * random.normal(size=owner.size))
    seconds = law.tool_s.value * np.exp(law.tool_sigma.value * random.normal(size=owner.size))
    limit = law.tool_limit_s.value
    luck = random.random(size=owner.size)
    timeout = (luck < chance[owner]) | (seconds >= limit)
    error = ~timeout & (luck > 1 - law.error_share.value)
    status = np.where(timeout, STATUSES.index("timeout"), np.where(error, STATUSES.index("error"), 0)).astype(np.int8)
    return np.minimum(tokens, law.most_tool_tokens.value), np.where(timeout, limit, seconds), status


def _within_context(
    law: WorkloadLaw,
    prompt: Floats,
    turns: Ints,
    per_turn: tuple[Floats, Floats, Floats, NDArray[np.int8]],
    size: int,
    level: float,
) -> Trajectories:
    """A trajectory ends with the turn before its context would pass the limit; a single longer turn is cut."""
    generated, returned, tool_s, status = per_turn
    first = np.concatenate([[0], np.cumsum(turns)[:-1]])
    owner = np.repeat(np.arange(turns.size), turns)
    place = np.arange(owner.size) - first[owner]
    grown = np.cumsum(generated + returned)
    before = grown[first] - (generated + returned)[first]
    upto = prompt[owner] + grown - before[owner]
    room = law.longest_tokens.value - _ROOM_FOR_ANSWER
    fits = np.bincount(owner, weights=upto <= room, minlength=turns.size).astype(np.int64)
    kept_turns = np.clip(fits, 1, turns)
    kept = place < kept_turns[owner]
    longest = np.maximum(room - prompt, _SHORTEST_TURN)[owner]
    last = place == kept_turns[owner] - 1
    generated = np.minimum(generated, longest)
    return Trajectories(
        group_size=size,
        prompt_tokens=prompt,
        first_turn=np.concatenate([[0], np.cumsum(kept_turns)[:-1]]).astype(np.int64),
        turns=kept_turns,
        generated=generated[kept],
        returned=np.where(last, 0.0, returned)[kept],
        tool_s=np.where(last, 0.0, tool_s)[kept],
        status=np.where(last, 0, status).astype(np.int8)[kept],
        level=np.full(turns.size, level),
    )
