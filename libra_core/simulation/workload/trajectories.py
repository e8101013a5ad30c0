"""Trajectories as flat arrays, the form in which the kernel reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra_core.errors import ConfigError
from libra_core.types.lengths import LengthRecord

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectories:
    """`n` trajectories in the order of admission, samples of one prompt together; turns of one after those of another."""

    group_size: int
    prompt_tokens: Floats
    """`[n]`."""
    first_turn: Ints
    turns: Ints
    generated: Floats
    """`[turns]` tokens, as the next two; what a tool returns follows its turn, and nothing follows the last."""
    returned: Floats
    tool_s: Floats
    status: NDArray[np.int8]
    """`[turns]` index into `STATUSES` of the tool return."""
    level: Floats
    """`[n]` drift: factor on lengths at the time of its step."""

    def __len__(self) -> int:
        return int(self.prompt_tokens.size)

    @property
    def total_generated(self) -> Floats:
        return np.add.reduceat(self.generated, self.first_turn)

    @property
    def total_tokens(self) -> Floats:
        """Prompt, generated and returned tokens."""
        return self.prompt_tokens + self.total_generated + self._before_last(self.returned)

    @property
    def total_tool_s(self) -> Floats:
        return self._before_last(self.tool_s)

    def contexts(self) -> tuple[Floats, Floats]:
        """`[turns]` context before each turn, and tokens that arrive with it."""
        first, owner = self.first_turn, np.repeat(np.arange(len(self)), self.turns)
        arriving = np.concatenate([[0.0], self.returned[:-1]])
        arriving[first] = self.prompt_tokens
        grown = np.cumsum(arriving + self.generated)
        start = grown[first] - (arriving + self.generated)[first]
        return grown - start[owner] - arriving - self.generated, arriving

    def rows(self, start: int, stop: int) -> "Trajectories":
        """Trajectories `[start, stop)` alone; whole groups."""
        first = int(self.first_turn[start])
        last = int(self.first_turn[stop]) if stop < len(self) else self.generated.size
        return Trajectories(
            group_size=self.group_size,
            prompt_tokens=self.prompt_tokens[start:stop],
            first_turn=self.first_turn[start:stop] - first,
            turns=self.turns[start:stop],
            generated=self.generated[first:last],
            returned=self.returned[first:last],
            tool_s=self.tool_s[first:last],
            status=self.status[first:last],
            level=self.level[start:stop],
        )

    def record(self, i: int, step: int | None = None) -> LengthRecord:
        """What a length history keeps of it."""
        first, last = int(self.first_turn[i]), int(self.first_turn[i] + self.turns[i])
        return LengthRecord(
            prompt_tokens=int(self.prompt_tokens[i]),
            generated_tokens=tuple(max(1, round(value)) for value in self.generated[first:last].tolist()),
            tool_tokens=tuple(round(value) for value in self.returned[first : last - 1].tolist()),
            tool_s=tuple(self.tool_s[first : last - 1].tolist()),
            step=step,
        )

    def _before_last(self, values: Floats) -> Floats:
        return np.add.reduceat(values, self.first_turn) - values[self.first_turn + self.turns - 1]


def from_records(records: Sequence[LengthRecord], group_size: int) -> Trajectories:
    """Replay: recorded trajectories, in order; a rest that fills no group is left out."""
    kept = records[: len(records) // group_size * group_size]
    turns = np.array([len(record.generated_tokens) for record in kept], dtype=np.int64)
    returned = [_padded(record.tool_tokens, len(record.generated_tokens)) for record in kept]
    waits = [_padded(record.tool_s, len(record.generated_tokens)) for record in kept]
    return Trajectories(
        group_size=group_size,
        prompt_tokens=np.array([record.prompt_tokens for record in kept], dtype=np.float64),
        first_turn=np.concatenate([[0], np.cumsum(turns)[:-1]]).astype(np.int64),
        turns=turns,
        generated=np.array([max(value, 1) for record in kept for value in record.generated_tokens], dtype=np.float64),
        returned=np.array([value for row in returned for value in row]),
        tool_s=np.array([value for row in waits for value in row]),
        status=np.zeros(int(turns.sum()), dtype=np.int8),
        level=np.ones(len(kept)),
    )


def resampled(records: Sequence[LengthRecord], count: int, group_size: int, seed: int) -> Trajectories:
    """`count` trajectories drawn from recorded ones with replacement, whole groups of neighbours together. Raises
    `ConfigError` when there are none."""
    if not records:
        raise ConfigError("the length history holds no trajectory; give one that does")
    size = min(group_size, len(records))
    starts = np.random.default_rng(seed).integers(0, len(records) // size, -(-count // size)) * size
    chosen = [records[start + place] for start in starts.tolist() for place in range(size)]
    return from_records(chosen[:count], group_size)


def _padded(values: Sequence[float], turns: int) -> list[float]:
    return [float(value) for value in values[: turns - 1]] + [0.0] * (turns - min(turns - 1, len(values)))
