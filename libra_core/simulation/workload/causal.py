"""Trajectories whose tool returns cause their length: a workload on which the best possible router is known.

Assumptions, all of them:

- There are four length classes with their own mean number of turns; a trajectory's class is drawn once. The prompt leans towards
  one class: a share `prompt_signal` of its samples has that class, the others any class by its overall share.
- Tools fail in a way that belongs to the class: each class has its own sequence of (tool, status, payload size) returns, as a
  task that needs three repairs keeps failing tests. Each return follows that sequence with probability `strength`; else it is
  drawn from what all classes return, and tells nothing. `strength` 0 makes returns noise, 1 makes the first one decisive.
- Sequences of two classes may begin alike: classes 0 and 1, and 2 and 3, share their first return and part at the second. What is
  left is thus revealed progressively.
- Tokens per turn are log-normal and independent of everything; lengths inside a class vary with the number of turns and with
  them.

Nothing here is fitted to measured agents; `data/trajectories` holds those. Class shares, turns and `prompt_signal` are chosen so
that a prompt-only predictor and classic MLFQ reach about the accuracies that the paper reports for them
(docs/references.md#the-paper); `strength` changes neither.
"""

import itertools
import math
import random
from dataclasses import dataclass

from libra_core.routing.evaluate.recorded import RecordedTrajectory, RecordedTurn
from libra_core.types.trajectory import ToolStatus

_THEMES = (
    "Answer a short factual question about a country, its capital or its currency.",
    "Compare two passages from an encyclopedia and say which of the two people was born first.",
    "Repair a failing unit test in a small Python package and explain the change in one sentence.",
    "Port a numerical simulation from Fortran to C++, build it, and make the whole test-suite pass.",
)
"""What the prompts of a leaning are about: an embedding can tell them apart as well as a reader."""
_TOOLS = ("read", "search", "edit", "execute")
_STATUSES = (ToolStatus.OK, ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT)
_PAYLOADS = (0, 60, 400, 3000)
"""Tokens; each in a payload class of its own."""
_SEQUENCE = 16
"""Returns after which a class's sequence begins again."""
_GRAMMAR_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalWorkload:
    """Parameters of the generator; see the module for what they mean."""

    strength: float = 0.9
    prompt_signal: float = 0.68
    prompts: int = 40
    samples: int = 32
    """Per prompt, over all epochs."""
    class_shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    class_turns: tuple[int, ...] = (4, 10, 22, 48)
    """Mean turns; the actual number is uniform within a fifth of it, at least one turn either way."""
    turn_tokens: float = 150.0
    """Median generated tokens of a turn."""
    turn_spread: float = 0.3
    """Standard deviation of the logarithm of a turn's tokens."""
    prompt_tokens: int = 300

    def __post_init__(self) -> None:
        for name, value in (("strength", self.strength), ("prompt_signal", self.prompt_signal)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value:g}; it is a probability, give a number from 0 to 1")

    @property
    def limits(self) -> tuple[float, ...]:
        """Token limits between the classes: the geometric means of neighbouring classes' mean totals."""
        mean = self.turn_tokens * math.exp(self.turn_spread**2 / 2)
        totals = [turns * mean for turns in self.class_turns]
        return tuple((low * high) ** 0.5 for low, high in itertools.pairwise(totals))


@dataclass(frozen=True, slots=True)
class _Return:
    tool: str
    status: ToolStatus
    payload: int


def causal_trajectories(workload: CausalWorkload, seed: int = 0) -> list[RecordedTrajectory]:
    """`prompts · samples` trajectories, the samples of a prompt together; the same for the same seed."""
    draw = random.Random(seed)
    sequences = _class_sequences(len(workload.class_turns))
    trajectories: list[RecordedTrajectory] = []
    for prompt in range(workload.prompts):
        leaning = _pick(workload.class_shares, draw)
        for sample in range(workload.samples):
            own = leaning if draw.random() < workload.prompt_signal else _pick(workload.class_shares, draw)
            trajectories.append(
                RecordedTrajectory(
                    name=f"{prompt}/{sample}",
                    prompt_id=f"prompt-{prompt}",
                    prompt_text=f"{_THEMES[leaning]} Case {prompt}.",
                    prompt_tokens=workload.prompt_tokens,
                    turns=_turns(workload, own, sequences, draw),
                )
            )
    return trajectories


def _turns(workload: CausalWorkload, own: int, sequences: list[list[_Return]], draw: random.Random) -> tuple[RecordedTurn, ...]:
    mean = workload.class_turns[own]
    slack = max(1, mean // 5)
    turns: list[RecordedTurn] = []
    for turn in range(draw.randint(mean - slack, mean + slack)):
        follows = draw.random() < workload.strength
        source = sequences[own][turn % _SEQUENCE] if follows else draw.choice(draw.choice(sequences))
        turns.append(
            RecordedTurn(
                generated_tokens=max(1, round(workload.turn_tokens * draw.lognormvariate(0, workload.turn_spread))),
                tool=source.tool,
                status=source.status,
                payload_tokens=source.payload,
                tool_s=draw.expovariate(1.0),
            )
        )
    return tuple(turns)


def _class_sequences(classes: int) -> list[list[_Return]]:
    """One sequence a class; classes 2k and 2k + 1 share their first return, and all part at the second."""
    draw = random.Random(_GRAMMAR_SEED)
    alphabet = [_Return(tool, status, payload) for tool in _TOOLS for status in set(_STATUSES) for payload in _PAYLOADS]
    alphabet.sort(key=lambda item: (item.tool, item.status, item.payload))
    columns = [draw.sample(alphabet, classes) for _ in range(_SEQUENCE)]
    columns[0] = [columns[0][own // 2] for own in range(classes)]
    return [[column[own] for column in columns] for own in range(classes)]


def _pick(shares: tuple[float, ...], draw: random.Random) -> int:
    return draw.choices(range(len(shares)), weights=shares)[0]
