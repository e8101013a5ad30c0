"""Answers compared as the field does: exact match and token F1 after the normalisation of SQuAD."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

from libra_core.workloads.search_r1.words import split_unspaced

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_MINUS: Final = "\u2212"
"""Left out as the hyphen is."""
_ASCII_PUNCTUATION: Final = frozenset(string.punctuation)


def normalise(text: str) -> str:
    """One form of Unicode, without case, punctuation and articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", _without_punctuation(text)).split())


def comparable(text: str) -> str:
    """The same, but a text of articles alone, such as the choice `A`, keeps them."""
    return normalise(text) or " ".join(_without_punctuation(text).split())


def one_form(text: str) -> str:
    """Case, width, ligatures, composed or combining marks, digits of other scripts and marks without width all alike."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold().replace("i\u0307", "i"))
    return "".join(_one_digit(character) for character in folded if unicodedata.category(character) != "Cf")


def exact_match(answer: str, accepted: Sequence[str]) -> bool:
    """An answer that normalises to nothing matches nothing."""
    written = comparable(answer)
    return bool(written) and written in {comparable(candidate) for candidate in accepted}


def token_f1(answer: str, accepted: str) -> float:
    """Harmonic mean of precision and recall over the bags of words; of pairs of characters where words have no spaces."""
    written, expected = (Counter(split_unspaced(comparable(text))) for text in (answer, accepted))
    common = (written & expected).total()
    if not common:
        return 0.0
    precision, recall = common / written.total(), common / expected.total()
    return 2 * precision * recall / (precision + recall)


def _without_punctuation(text: str) -> str:
    return "".join(character for character in one_form(text) if not _is_punctuation(character))


def _is_punctuation(character: str) -> bool:
    return character in _ASCII_PUNCTUATION or character == _MINUS or unicodedata.category(character).startswith("P")


def _one_digit(character: str) -> str:
    if character.isascii() or (value := unicodedata.decimal(character, None)) is None:
        return character
    return str(value)
