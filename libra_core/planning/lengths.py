"""From length records to the weighted table that the planner computes with.

The table does not depend on how much history is stored: weights follow the age in optimizer steps, equal records are merged,
and only shares count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra_core.costs.api import TrainingLoad
from libra_core.errors import ConfigError
from libra_core.types.lengths import LengthRecord

Floats = NDArray[np.float64]

_WEIGHT_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTable:
    """One row a kind of trajectory, sorted by generated tokens; all arrays `[n]`."""

    weight: Floats
    """Shares; they add up to 1."""
    turns: Floats
    prompt_tokens: Floats
    generated_tokens: Floats
    tool_tokens: Floats
    tool_s: Floats
    prefill_pairs: Floats
    """Σ over turns of n·(k + n/2): `n` tokens prefilled on a context of `k`."""
    decode_context: Floats
    """Σ over generated tokens of the context they are decoded at."""

    def __len__(self) -> int:
        return int(self.weight.size)

    @property
    def total_tokens(self) -> Floats:
        return self.prompt_tokens + self.generated_tokens + self.tool_tokens

    @property
    def prefill_tokens(self) -> Floats:
        return self.prompt_tokens + self.tool_tokens

    def mean(self, values: Floats) -> float:
        return float(self.weight @ values)

    @property
    def mean_context(self) -> float:
        """Tokens resident while an average generated token is decoded."""
        return self.mean(self.decode_context) / self.mean(self.generated_tokens)

    def training_load(self, batch: int, longest_tokens: float) -> TrainingLoad:
        """The expected load of one step; the longest sequence is the longest allowed, since memory must hold for it."""
        total = self.total_tokens
        return TrainingLoad(
            num_sequences=batch,
            tokens=batch * self.mean(total),
            squared_tokens=batch * self.mean(total * total),
            longest_tokens=max(longest_tokens, float(total.max())),
        )

    def resampled(self, count: int) -> "LengthTable":
        """Exactly `count` rows of equal weight at the quantile midpoints of generated length, rows repeated where need be.

        It keeps means, and loses what is rarer than one in `count`: nothing for maxima.
        """
        upto = np.round(np.cumsum(self.weight), _WEIGHT_DIGITS)
        rows = np.searchsorted(upto, (np.arange(count) + 0.5) / count * upto[-1])
        return self._rows(rows, np.full(count, 1.0 / count))

    def weighted(self, weight: Floats) -> "LengthTable":
        """The rows that have a share `[n]`, with it."""
        rows = np.flatnonzero(weight)
        return self._rows(rows, weight[rows])

    def within(self, first: float, last: float) -> Floats:
        """`[n]` shares of the rows that lie between these quantiles of generated length; a row on a border is divided."""
        upto = np.cumsum(self.weight)
        upto /= upto[-1]
        return np.clip(np.minimum(upto, last) - np.maximum(upto - self.weight, first), 0.0, None)

    def _rows(self, rows: NDArray[np.intp], weight: Floats) -> "LengthTable":
        return LengthTable(
            weight=weight,
            turns=self.turns[rows],
            prompt_tokens=self.prompt_tokens[rows],
            generated_tokens=self.generated_tokens[rows],
            tool_tokens=self.tool_tokens[rows],
            tool_s=self.tool_s[rows],
            prefill_pairs=self.prefill_pairs[rows],
            decode_context=self.decode_context[rows],
        )


def length_table(records: Sequence[LengthRecord], *, half_life_steps: float = 10.0) -> LengthTable:
    """Weigh records by age: one `half_life_steps` older counts half. Raises `ConfigError` when there is none."""
    if not records:
        raise ConfigError("the length history is empty; plan without --history to use the embedded one")
    rows = np.array([_row(record) for record in records], dtype=np.float64)
    return table_of(rows, _recency(records, half_life_steps))


def table_of(rows: Floats, weight: Floats) -> LengthTable:
    """Merge equal rows `[n, 7]` (columns as in `LengthTable`, generated tokens first) and normalise their weights."""
    unique, where = np.unique(rows, axis=0, return_inverse=True)
    share = np.bincount(where.ravel(), weights=weight, minlength=len(unique))
    share = np.round(share / share.sum(), _WEIGHT_DIGITS)
    kept = share > 0
    unique, share = unique[kept], share[kept] / share[kept].sum()
    generated, turns, prompt, tool_tokens, tool_s, pairs, context = (unique[:, column] for column in range(7))
    return LengthTable(
        weight=share,
        turns=turns,
        prompt_tokens=prompt,
        generated_tokens=generated,
        tool_tokens=tool_tokens,
        tool_s=tool_s,
        prefill_pairs=pairs,
        decode_context=context,
    )


def _recency(records: Sequence[LengthRecord], half_life_steps: float) -> Floats:
    steps = [record.step for record in records if record.step is not None]
    newest = max(steps, default=0)
    age = np.array([0 if record.step is None else newest - record.step for record in records], dtype=np.float64)
    return 0.5 ** (age / half_life_steps)


def _row(record: LengthRecord) -> tuple[float, ...]:
    context, arriving = 0.0, float(record.prompt_tokens)
    pairs = decode = 0.0
    for turn, generated in enumerate(record.generated_tokens):
        pairs += arriving * (context + arriving / 2)
        context += arriving
        decode += generated * (context + generated / 2)
        context += generated
        arriving = float(record.tool_tokens[turn]) if turn < len(record.tool_tokens) else 0.0
    returned = record.tool_tokens[: len(record.generated_tokens) - 1]
    waited = record.tool_s[: len(record.generated_tokens) - 1]
    return (
        float(sum(record.generated_tokens)),
        float(len(record.generated_tokens)),
        float(record.prompt_tokens),
        float(sum(returned)),
        float(sum(waited)),
        pairs,
        decode,
    )
