"""Generated lengths that stand in for a history until there is one. Log-normal laws, documented, with a fixed seed.

`r2e_gym` and the others follow docs/measurements.md#assumed-lengths (mean generated / total tokens 5.1k / 17.4k, 1.6k / 4.3k,
6.7k / 6.8k; half of the log-length variance belongs to the prompt). Their shapes agree with recorded agents
(docs/references.md#recorded-agents), whose own lengths are of other tasks. The limit of 40,960 tokens is the paper's
(docs/references.md#the-paper). None is a measurement.
"""

from dataclasses import dataclass, replace

import numpy as np

from libra_core.types.lengths import LengthRecord

_SEED = 0
_GROUP = 16
_ROOM_FOR_ANSWER = 600 / 40960
"""Of the longest trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLaw:
    """Medians with the standard deviation of the natural logarithm, and largest values."""

    prompt_tokens: float
    turns: float
    turns_sigma: float
    most_turns: int
    turn_tokens: float
    turn_sigma: float
    trajectory_sigma: float
    """Between trajectories, of the tokens per turn."""
    tool_tokens: float = 0.0
    tool_tokens_sigma: float = 0.0
    tool_s: float = 0.0
    tool_sigma: float = 0.0
    most_tool_s: float = 0.0
    prompt_sigma: float = 0.5
    prompt_share: float = 0.5
    """Share of the variance between trajectories that belongs to the prompt."""
    longest_tokens: int = 40960

    def within(self, longest_tokens: int, most_turns: int) -> "LengthLaw":
        """The same shape where no trajectory may be longer; a first estimate, and no more."""
        share = min(1.0, longest_tokens / self.longest_tokens)
        return replace(
            self,
            prompt_tokens=self.prompt_tokens * share,
            turn_tokens=self.turn_tokens * share,
            tool_tokens=self.tool_tokens * share,
            most_turns=min(self.most_turns, most_turns),
            longest_tokens=round(self.longest_tokens * share),
        )

    @property
    def cut_tokens(self) -> int:
        """Where a trajectory ends that is about to be too long."""
        return round(self.longest_tokens * (1 - _ROOM_FOR_ANSWER))


LAWS = {
    "r2e_gym": LengthLaw(
        prompt_tokens=2500, turns=12, turns_sigma=0.6, most_turns=50, turn_tokens=190, turn_sigma=0.9, trajectory_sigma=0.6,
        tool_tokens=420, tool_tokens_sigma=1.1, tool_s=1.2, tool_sigma=1.5, most_tool_s=120,
    ),
    "search_r1": LengthLaw(
        prompt_tokens=300, turns=4, turns_sigma=0.45, most_turns=10, turn_tokens=260, turn_sigma=0.7, trajectory_sigma=0.35,
        tool_tokens=600, tool_tokens_sigma=0.5, tool_s=0.6, tool_sigma=0.7, most_tool_s=20,
    ),
    "dapo_math": LengthLaw(
        prompt_tokens=160, turns=1, turns_sigma=0.0, most_turns=1, turn_tokens=4500, turn_sigma=0.0, trajectory_sigma=0.95
    ),
}  # fmt: skip


def example_records(law: LengthLaw, num: int, *, seed: int = _SEED) -> list[LengthRecord]:
    """`num` trajectories in groups of 16 that share a prompt."""
    random = np.random.default_rng(seed)
    groups = -(-num // _GROUP)
    shared, own = np.repeat(random.normal(size=groups), _GROUP)[:num], random.normal(size=num)
    level = np.sqrt(law.prompt_share) * shared + np.sqrt(1 - law.prompt_share) * own
    size = law.trajectory_sigma * (level if law.most_turns == 1 else 0.5 * level + 0.87 * random.normal(size=num))
    turns = np.clip(np.rint(law.turns * np.exp(law.turns_sigma * level)), 1, law.most_turns).astype(int)
    prompts = np.repeat(law.prompt_tokens * np.exp(law.prompt_sigma * random.normal(size=groups)), _GROUP)[:num]
    return [_record(law, random, int(max(prompts[i], 30)), int(turns[i]), float(np.exp(size[i]))) for i in range(num)]


def _record(law: LengthLaw, random: np.random.Generator, prompt: int, turns: int, scale: float) -> LengthRecord:
    generated = np.maximum(law.turn_tokens * scale * np.exp(law.turn_sigma * random.normal(size=turns)), 8).astype(int)
    returned = np.minimum(law.tool_tokens * np.exp(law.tool_tokens_sigma * random.normal(size=turns)), 8000).astype(int)
    waited = np.minimum(law.tool_s * np.exp(law.tool_sigma * random.normal(size=turns)), law.most_tool_s)
    upto = prompt + np.cumsum(generated + returned)
    kept = max(1, min(turns, int(np.searchsorted(upto, law.cut_tokens))))
    longest = law.cut_tokens - prompt
    return LengthRecord(
        prompt_tokens=prompt,
        generated_tokens=tuple(np.minimum(generated[:kept], max(longest, 8)).tolist()),
        tool_tokens=tuple(returned[: kept - 1].tolist()),
        tool_s=tuple(waited[: kept - 1].tolist()),
    )
