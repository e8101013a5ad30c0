"""How the ranks of the core agree, in one MIN all-reduce of a few integers, on what counts in a step and who is in the next.

A rank sees only its own connections, and a replica may die between the messages of its shards. So each rank states, for every
slot and question, the epoch for which it can say yes, 0 for no, or that it has no say. Yes is agreed when all who have a say
name the same epoch: the minimum of `e` and the minimum of `-e` show it together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

NO_SAY = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One rank's answers about one slot: the epoch, 0 for no, `NO_SAY` where it does not hold that connection."""

    contributed: int = NO_SAY
    """Its contribution to this step is complete."""
    stays: int = NO_SAY
    """It has caught up and asks for no leave: it may be active in the next step."""
    wants_snapshot: int = NO_SAY
    follows: int = NO_SAY
    """It holds a snapshot and needs every gradient from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What all ranks agreed on about one slot: the epoch, or 0 for no."""

    contributed: int
    stays: int
    wants_snapshot: int
    follows: int


_QUESTIONS = tuple(item.name for item in fields(Vote))
BALLOT_SIZE = 2 * len(_QUESTIONS)
"""Integers per slot."""


def ballot(votes: Sequence[Vote]) -> list[int]:
    """Votes by slot as the integers whose element-wise minimum over all ranks is needed."""
    numbers: list[int] = []
    for vote in votes:
        for question in _QUESTIONS:
            epoch = getattr(vote, question)
            numbers += [epoch, NO_SAY if epoch == NO_SAY else -epoch]
    return numbers


def verdicts(minima: Sequence[int]) -> list[Agreed]:
    """By slot, from the minima over all ranks."""
    slots = range(0, len(minima), BALLOT_SIZE)
    return [Agreed(**dict(zip(_QUESTIONS, _agreed(minima[at : at + BALLOT_SIZE]), strict=True))) for at in slots]


def _agreed(minima: Sequence[int]) -> list[int]:
    # min(e) and min(-e) = -max(e): equal only where all name one epoch. By the first alone a rank that has met the next life of a
    # replica and one that holds its last would agree on the older. `NO_SAY` is the largest of either, and so changes neither.
    pairs = zip(minima[0::2], minima[1::2], strict=True)
    return [least if least == -negated and 0 < least < NO_SAY else 0 for least, negated in pairs]
