"""Answers compared as the field does: exact match and token F1 after the normalisation of SQuAD."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION: Final = frozenset(string.punctuation)


def normalise(text: str) -> str:
    """One form of Unicode, lower case, without punctuation and articles, single spaces."""
    lowered = unicodedata.normalize("NFKC", text).lower()
    plain = "".join(character for character in lowered if not _is_punctuation(character))
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(answer: str, accepted: Sequence[str]) -> bool:
    """An answer that normalises to nothing matches nothing."""
    normalised = normalise(answer)
    return bool(normalised) and normalised in {normalise(candidate) for candidate in accepted}


def token_f1(answer: str, accepted: str) -> float:
    """Harmonic mean of precision and recall over the bags of words."""
    written, expected = Counter(normalise(answer).split()), Counter(normalise(accepted).split())
    common = (written & expected).total()
    if not common:
        return 0.0
    precision, recall = common / written.total(), common / expected.total()
    return 2 * precision * recall / (precision + recall)


def _is_punctuation(character: str) -> bool:
    return character in _ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")
