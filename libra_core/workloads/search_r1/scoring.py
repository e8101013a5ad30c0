"""Exact match as Search-R1 scores it (normalisation of SQuAD), on the model's own last turn."""

import re
import string
from collections.abc import Sequence
from typing import Final

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation + "’")


def normalise(text: str) -> str:
    """Lower case, without punctuation and articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, accepted: Sequence[str]) -> bool:
    """An answer that normalises to nothing matches nothing."""
    normalised = normalise(answer)
    return bool(normalised) and normalised in {normalise(candidate) for candidate in accepted}
