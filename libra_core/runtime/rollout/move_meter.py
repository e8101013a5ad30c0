"""What moves cost lately, per token of context."""

from dataclasses import dataclass, field

_HALF_LIFE_MOVES = 64.0
_ENOUGH = 8.0
"""Moves, after forgetting, from which on the figure is used."""


@dataclass(slots=True)
class _Tally:
    moves: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class MoveMeter:
    """By degree of the target: a quotient of sums, so that long contexts weigh as much as they take."""

    _tallies: dict[int, _Tally] = field(default_factory=dict[int, _Tally])

    def add(self, tp: int, context_tokens: int, seconds: float) -> None:
        tally = self._tallies.setdefault(tp, _Tally())
        kept = 0.5 ** (1.0 / _HALF_LIFE_MOVES)
        tally.moves = kept * tally.moves + 1.0
        tally.tokens = kept * tally.tokens + context_tokens
        tally.seconds = kept * tally.seconds + seconds

    def s_per_token(self) -> dict[int, float]:
        """Of the degrees that have seen enough moves."""
        return {tp: t.seconds / t.tokens for tp, t in self._tallies.items() if t.moves >= _ENOUGH and t.tokens > 0}
