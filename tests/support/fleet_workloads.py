"""Trajectories of three kinds of agents (docs/measurements.md#assumed-lengths) for event simulations of a fleet."""

import math
from dataclasses import dataclass

import numpy as np

from libra_core.routing.evaluate.recorded import RecordedTrajectory, RecordedTurn
from libra_core.types.trajectory import ToolStatus

MAX_TOKENS = 40_960
CHUNK_TOKENS = 2048
"""A generation without tools passes a check point of the router after so many tokens."""


@dataclass(frozen=True, slots=True)
class Law:
    """Log-normal laws: (median, standard deviation of the logarithm[, largest])."""

    prompt: float
    turns: tuple[float, float, int] | None
    generated: tuple[float, float]
    """Per turn; in total where there are no turns."""
    returned: tuple[float, float]
    tool_s: tuple[float, float, float]
    sample: float
    """Spread of the tokens a turn takes in this trajectory, half of it the prompt's."""


LAWS = {
    "search": Law(300, (4, 0.45, 10), (260, 0.7), (600, 0.5), (0.6, 0.7, 20), 0.35),
    "math": Law(160, None, (4500, 0.95), (0, 0), (0, 0, 0), 0.95),
    "r2e": Law(2500, (12, 0.6, 50), (190, 0.9), (420, 1.1), (1.2, 1.5, 120), 0.6),
}
LEVEL = 1.58
"""Lengths relative to the beginning of a run, half-way up a drift of x2.5."""


def fleet_groups(name: str, *, groups: int, group: int, prompts: int, seed: int) -> list[list[RecordedTrajectory]]:
    """`groups` GRPO groups of `group` samples: epochs over `prompts` prompts, shuffled anew in each.

    Half of the variance of a trajectory's log length is its prompt's. Tool returns say nothing about the length beyond their
    number, and one in seven is an error.
    """
    random = np.random.default_rng(seed)
    hardness, size = random.normal(size=prompts), np.exp(0.5 * random.normal(size=prompts))
    order = np.concatenate([random.permutation(prompts) for _ in range(-(-groups // prompts))])[:groups]
    return [
        [
            _trajectory(LAWS[name], f"{visit}/{sample}", int(prompt), (float(hardness[prompt]), float(size[prompt])), random)
            for sample in range(group)
        ]
        for visit, prompt in enumerate(order)
    ]


def _trajectory(
    law: Law, name: str, prompt: int, of_prompt: tuple[float, float], random: np.random.Generator
) -> RecordedTrajectory:
    z = math.sqrt(0.5) * (of_prompt[0] + random.normal())
    tokens = max(30, round(law.prompt * of_prompt[1]))
    turns = _single(law, z, tokens) if law.turns is None else _several(law, law.turns, z, tokens, random)
    text = f"task {prompt}"
    return RecordedTrajectory(name=name, prompt_id=text, prompt_text=text, prompt_tokens=tokens, turns=turns)


def _single(law: Law, z: float, prompt: int) -> tuple[RecordedTurn, ...]:
    total = min(max(law.generated[0] * LEVEL * math.exp(law.generated[1] * z), 200), MAX_TOKENS - prompt)
    whole, rest = divmod(max(1, round(total)), CHUNK_TOKENS)
    return tuple(_turn(tokens, 0, 0.0, ToolStatus.OK) for tokens in [CHUNK_TOKENS] * whole + ([rest] if rest else []))


def _several(
    law: Law, turns: tuple[float, float, int], z: float, prompt: int, random: np.random.Generator
) -> tuple[RecordedTurn, ...]:
    count = int(min(max(round(turns[0] * LEVEL**0.6 * math.exp(turns[1] * z)), 1), turns[2]))
    scale = math.exp(law.sample * (0.5 * z + 0.87 * random.normal())) * LEVEL**0.4
    found: list[RecordedTurn] = []
    context = prompt
    for _ in range(count):
        generated = max(8, round(law.generated[0] * scale * math.exp(law.generated[1] * random.normal())))
        returned = min(8000, round(law.returned[0] * math.exp(law.returned[1] * random.normal())))
        tool_s = min(law.tool_s[0] * math.exp(law.tool_s[1] * random.normal()), law.tool_s[2])
        status = ToolStatus.ERROR if random.random() < 1 / 7 else ToolStatus.OK
        if found and context + generated + returned > MAX_TOKENS - 600:
            break
        found.append(_turn(min(generated, MAX_TOKENS - prompt - 600), returned, tool_s, status))
        context += generated + returned
    return tuple(found)


def _turn(generated: int, returned: int, tool_s: float, status: ToolStatus) -> RecordedTurn:
    return RecordedTurn(generated_tokens=generated, tool="tool", status=status, payload_tokens=returned, tool_s=tool_s)
