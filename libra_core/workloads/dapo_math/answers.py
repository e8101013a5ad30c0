"""The final answer in a solution, and the comparisons that need no computer algebra."""

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

_ANSWER_LINE: Final = re.compile(r"^[ \t*_]*(?:final[ \t]+)?answer[ \t*_]*(?:is)?[ \t]*[::]?[ \t*_]*(.+?)[ \t]*$", re.I | re.M)
_HASHES: Final = re.compile(r"^####[ \t]*(.+?)[ \t]*$", re.M)
_MAX_ANSWER: Final = 1000
_UNITS: Final = re.compile(r"\\(?:text|mbox|mathrm)\{\s*[a-zA-Z .]*\}\s*$")
_NUMBER: Final = re.compile(r"^[+-]?(?:\d+(?:\.\d*)?|\.\d+)$")
_RATIO: Final = re.compile(r"^([+-]?\d+)\s*/\s*(\d+)$")
_LATEX_RATIO: Final = re.compile(r"^([+-]?)\\[dt]?frac(?:\{([+-]?\d+)\}\{(\d+)\}|(\d)(\d))$")
_ASSIGNED: Final = re.compile(r"^[a-zA-Z]\s*=\s*(?=[^=])")
_THOUSANDS: Final = re.compile(r"(?<=\d),(?:\\!)?(?=\d{3}(?!\d))")


class NoAnswer(StrEnum):
    """Why there is nothing to compare."""

    EMPTY = "nothing was written"
    MISSING = "no boxed answer and no answer line"
    UNCLOSED = "the last \\boxed{ is never closed"
    TOO_LONG = f"the answer is longer than {_MAX_ANSWER} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    answer: str | None
    reason: NoAnswer | None = None


def extract_answer(text: str) -> Extraction:
    """The last `\\boxed{…}`; without any, the last line `Answer: …` or `#### …`. Linear in the text's length."""
    if not text.strip():
        return Extraction(answer=None, reason=NoAnswer.EMPTY)
    found = last_boxed(text)
    if found is None and "\\boxed{" in text:
        return Extraction(answer=None, reason=NoAnswer.UNCLOSED)
    if found is None:
        lines = [line for line in text.split("\n") if len(line) <= 2 * _MAX_ANSWER]
        found = _last_line(lines)
    if found is None or not found.strip():
        return Extraction(answer=None, reason=NoAnswer.MISSING)
    if len(found) > _MAX_ANSWER:
        return Extraction(answer=None, reason=NoAnswer.TOO_LONG)
    return Extraction(answer=found.strip())


def last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{…}` with balanced braces; None without one or when the last is not closed."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for position in range(start + len("\\boxed"), len(text)):
        character = text[position]
        if text[position - 1] == "\\":
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start + len("\\boxed{") : position]
    return None


def _last_line(lines: list[str]) -> str | None:
    for line in reversed(lines):
        for pattern in (_HASHES, _ANSWER_LINE):
            if found := pattern.search(line):
                return found.group(1).rstrip(".")
    return None


def tidy(answer: str) -> str:
    """Without dressing that changes no value: dollars, thousands' commas, `x =`, units in \\text, a percent sign.

    A percent sign is a unit as in MATH's own grading: 70 % equals 70, not 0.7.
    """
    text = unicodedata.normalize("NFKC", answer).replace("−", "-").strip()
    text = text.removeprefix("\\(").removesuffix("\\)").removeprefix("\\[").removesuffix("\\]").strip().strip("$").strip()
    text = text.replace("\\$", "").replace("\\left", "").replace("\\right", "").replace("\\!", "")
    text = re.sub(r"\\?%$", "", text).strip()
    text = _UNITS.sub("", text) or text
    text = _THOUSANDS.sub("", text)
    text = _ASSIGNED.sub("", text)
    return " ".join(text.split()).rstrip(".")


def same_value(first: str, second: str) -> bool | None:
    """Whether two answers are equal where that is plain to see; None where it takes computer algebra."""
    left, right = tidy(first), tidy(second)
    if left == right:
        return bool(left)
    numbers = _number(left), _number(right)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] == numbers[1]
    return None


def _number(text: str) -> Fraction | None:
    if len(text) > 60:
        return None
    if _NUMBER.match(text):
        return Fraction(text)
    if (found := _RATIO.match(text)) and int(found.group(2)):
        return Fraction(int(found.group(1)), int(found.group(2)))
    if found := _LATEX_RATIO.match(text):
        sign, above, below, short_above, short_below = found.groups()
        numerator, denominator = int(above or short_above), int(below or short_below)
        return (-1 if sign == "-" else 1) * Fraction(numerator, denominator) if denominator else None
    return None
