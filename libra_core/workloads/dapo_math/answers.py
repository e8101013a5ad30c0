"""The final answer in a solution, and the comparisons that need no computer algebra."""

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

_COLON: Final = "[:\uff1a\ufe55\u2236]"
"""Plain, full-width, small, and the ratio sign."""
_GAP: Final = r" \t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
"""Spaces within a line, for a class of characters."""
_DRESS: Final = rf"[{_GAP}*_>#`]*"
_LISTED: Final = rf"(?:(?:[-+\u2022\u2013]|\d{{1,3}}[.)]){_DRESS})?"
_IS: Final = r"(?:is\b|\u662f|\u4e3a)"
_ANSWER_LINE: Final = re.compile(
    rf"^{_DRESS}{_LISTED}(?:the[{_GAP}]+)?(?:final[{_GAP}]+)?(?:answer|\u7b54\u6848){_DRESS}(?:{_IS}{_DRESS})?{_COLON}",
    re.I | re.M,
)
_LOOSE_LINE: Final = re.compile(
    rf"^{_DRESS}{_LISTED}(?:final[{_GAP}]+)?answer\b(?!{_DRESS}{_COLON}){_DRESS}(?:{_IS}|=)?|(?:\banswer|\u7b54\u6848){_DRESS}{_IS}",
    re.I | re.M,
)
"""Without a colon, or said in a sentence; read only where there is neither a box nor a line with one."""
_HEADING: Final = re.compile(rf"^{_DRESS}(?:final[{_GAP}]+)?answer{_DRESS}$", re.I | re.M)
_SAID: Final = re.compile(rf"^(?:so[,{_GAP}]+)?(?:the[{_GAP}]+)?(?:final[{_GAP}]+)?answer{_DRESS}is\b{_DRESS}{_COLON}?", re.I)
"""A sentence after the colon, as few-shot prompts have it: `Final Answer: The final answer is 42. I hope it is correct.`"""
_SENTENCE_END: Final = re.compile(r"[.\u3002](?=\s+[A-Z]|\s*$)")
_INVISIBLE: Final = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_HASHES: Final = re.compile(r"^####[ \t]*(?=[^\s#])", re.M)
_BOX: Final = re.compile(r"\\(?:boxed|fbox|framebox)[ \t]*(?=\{)|\\boxed(?:[ \t]+(?=[^\s{])|(?=\d))")
_BOXED_WORD: Final = re.compile(r"[^\s$]+")
_EMPTY_BOX: Final = re.compile(r"\$*\\(?:boxed|fbox|framebox)[ \t]*\{\s*\}\$*")
_WORN: Final = " \t\r*_`\u00a0\u202f\u2009\u3000"
_MAX_ANSWER: Final = 1000
_UNITS: Final = re.compile(r"\\(?:text|mbox|mathrm)\{\s*[a-zA-Z .]*\}\s*$")
_GAP_AT_END: Final = re.compile(r"(?:~|\\[,;: ]|\s)+$")
_WORDED_UNITS: Final = re.compile(
    r"(?<=[\d.])\s*(?:dollar|cent|euro|pound|point|degree|hour|minute|second|day|week|month|year|mile|meter|metre|kilometer|liter|"
    r"litre|ounce|cup|ton|gallon|unit|way|student|digit|integer)s?$|(?<=[\d.])\s*(?:people|inch(?:es)?|foot|feet|pennies|mph)$",
    re.I,
)
"""After a number, as Minerva's normalisation of MATH answers leaves them out, and money."""
_ARGUMENT: Final = (
    r"(\{(?:[^{}]|\{[^{}]*\})*\}|[0-9a-zA-Z]|\\(?:pi|theta|alpha|beta|gamma|delta|lambda|mu|omega|phi|sigma|tau)(?![a-zA-Z]))"
)
_FRACTION: Final = re.compile(rf"\\([dtc]?)frac\s*{_ARGUMENT}\s*{_ARGUMENT}")
_BASED: Final = re.compile(
    r"(?<![\w^{}.\\])(?:\((\d+(?:\.\d+)?)\)|(\d+(?:\.\d+)?))\s*_\s*(?:\{\s*(\d{1,2})\s*\}|(\d{1,2})(?!\d))", re.A
)
"""A number with the base that its digits are meant in: `1010_2`, `(204)_{5}`."""
_NUMBER: Final = re.compile(r"^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?$", re.A)
_RATIO: Final = re.compile(r"^([+-]?\d+)\s*/\s*(\d+)$", re.A)
_MIXED: Final = re.compile(r"^([+-]?)(\d+) (\d+)/(\d+)$", re.A)
_LATEX_RATIO: Final = re.compile(r"^([+-]?)\\[dt]?frac(?:\{([+-]?\d+)\}\{(\d+)\}|(\d)(\d))$", re.A)
_ASSIGNED: Final = re.compile(r"^[a-zA-Z]\s*=\s*(?=[^=])")
_THOUSANDS: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,(?:\\!)?|\{,\}|\\[,;: ]|[ ~])\d{3})+(?![ ]?[\d/]|,\d|\{,\})", re.A)
_DEGREES: Final = re.compile(r"(?:\u00b0|\^\s*(?:\\circ|\{\s*\\circ\s*\}))$")
_SIGNS: Final = {
    **dict.fromkeys("\u2212\u2010\u2012\u2013", "-"),
    "\u221e": "\\infty ",
    "\u222a": "\\cup ",
    "\u2229": "\\cap ",
    "\u2208": "\\in ",
    "\u00d7": "\\times ",
    "\u22c5": "\\cdot ",
    "\u2264": "\\le ",
    "\u2265": "\\ge ",
    "\u2260": "\\ne ",
}
_ROOT: Final = re.compile(r"\u221a\s*(?:\(([^()]*)\)|(\d+|[a-z]))", re.A)


_SUPERSCRIPTS: Final = "\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b\u207d\u207e\u207f\u2071"
_RAISED: Final = re.compile(f"[{_SUPERSCRIPTS}]+")
_LOWERED: Final = re.compile("[\u2080-\u208e\u2090-\u209c]+")
_VULGAR: Final = re.compile("(?:(?<!\\d)(\\d{1,9})[ \u00a0]?)?([\u00bc-\u00be\u2150-\u215e\u2189])", re.A)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Something that may be the answer, at a place in the text; `text` None where a box is never closed."""

    place: int
    text: str | None


def extract_answer(text: str) -> Extraction:
    """The last `\\boxed{…}` or line `Answer: …`, whichever comes last; a line `#### …` where nothing is boxed; else a line
    `Answer is …`. Linear in the text's length.
    """
    text = text if text.isascii() else _INVISIBLE.sub("", text)
    if not text.strip():
        return Extraction(answer=None, reason=NoAnswer.EMPTY)
    box = _last_box(text)
    line = _last_line(text, _ANSWER_LINE)
    hashes = None if box else _last_line(text, _HASHES)
    last = max((each for each in (box, line, hashes) if each), key=lambda each: each.place, default=None)
    last = last or _last_line(text, _HEADING) or _last_line(text, _LOOSE_LINE)
    if last is None:
        return Extraction(answer=None, reason=NoAnswer.MISSING)
    if last.text is None:
        return Extraction(answer=None, reason=NoAnswer.UNCLOSED)
    if len(last.text) > _MAX_ANSWER:
        return Extraction(answer=None, reason=NoAnswer.TOO_LONG)
    return Extraction(answer=last.text)


def last_boxed(text: str) -> str | None:
    """Content of the last box that holds something; None without one or when the last is not closed."""
    box = _last_box(text)
    return None if box is None else box.text


def _last_box(text: str) -> _Place | None:
    """`\\boxed{}` with nothing in it is the instruction repeated, no answer."""
    for start in reversed([match.end() for match in _BOX.finditer(text)]):
        if text[start] != "{":
            word = _BOXED_WORD.match(text, start)
            if word is not None:
                return _Place(place=start, text=word.group().rstrip("."))
            continue
        content = _braced(text, start)
        if content is None:
            return _Place(place=start, text=None)
        if content.strip():
            return _Place(place=start, text=content.strip())
    return None


def _braced(text: str, start: int) -> str | None:
    """Between the brace at `start` and the one that closes it; None when none does."""
    depth = 0
    for position in range(start, len(text)):
        character = text[position]
        if text[position - 1] == "\\":
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start + 1 : position]
    return None


def _last_line(text: str, pattern: re.Pattern[str]) -> _Place | None:
    """What follows the last match of `pattern` on its line, or else on the next one that is not empty."""
    for start in reversed([match.end() for match in pattern.finditer(text)]):
        rest = text[start : start + 3 * _MAX_ANSWER].lstrip(_WORN)
        if rest.startswith("\n") and pattern in (_ANSWER_LINE, _HEADING):
            rest = rest.lstrip()
        line = rest.partition("\n")[0]
        said = _SAID.match(line)
        if said or pattern is _LOOSE_LINE:
            line = _SENTENCE_END.split(line[said.end() if said else 0 :], maxsplit=1)[0]
        answer = line.strip(_WORN).rstrip(".\u3002").rstrip(_WORN)
        if answer and not _EMPTY_BOX.fullmatch(answer):
            return _Place(place=start, text=answer)
    return None


def tidy(answer: str) -> str:
    """Without dressing that changes no value: dollars, thousands' commas, `x =`, units in \\text, a percent sign.

    A percent sign is a unit as in MATH's own grading: 70 % equals 70, not 0.7.
    """
    text = spelled_out(answer).strip()
    text = text.removeprefix("\\(").removesuffix("\\)").removeprefix("\\[").removesuffix("\\]").strip().strip("$").strip()
    text = text.replace("\\$", "").replace("\\left", "").replace("\\right", "")
    text = _DEGREES.sub("", re.sub(r"\\?%$", "", text)).strip()
    text = _GAP_AT_END.sub("", _UNITS.sub("", text)) or text
    text = _WORDED_UNITS.sub("", text)
    text = _without_thousands(text).replace("\\!", "")
    text = _ASSIGNED.sub("", text)
    return " ".join(text.split()).rstrip(".\u3002")


def spelled_out(text: str) -> str:
    """Digits, signs and forms of width in ASCII, and the arguments of fractions in braces. Raised and lowered characters and
    ready-made fractions as they are meant: NFKC alone would make 23 of 2\u00b3 and 11/2 of 1\u00bd.
    """
    text = _FRACTION.sub(_in_braces, text)
    if text.isascii():
        return text
    text = _RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match.group())}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{unicodedata.normalize('NFKC', match.group())}}}", text)
    text = unicodedata.normalize("NFKC", _VULGAR.sub(_as_ratio, text))
    text = "".join(_ascii_digit(character) for character in text if unicodedata.category(character) != "Cf")
    text = _ROOT.sub(lambda match: f"\\sqrt{{{match.group(1) or match.group(2) or ''}}}", text)
    return "".join(_SIGNS.get(character, character) for character in text)


def _in_braces(match: re.Match[str]) -> str:
    """TeX takes one token for an argument without braces."""
    kind, *arguments = match.groups()
    return f"\\{kind}frac" + "".join(part if part.startswith("{") else f"{{{part}}}" for part in arguments)


def _as_ratio(match: re.Match[str]) -> str:
    whole, sign = match.group(1) or "", match.group(2)
    above, _, below = unicodedata.normalize("NFKC", sign).partition("\u2044")
    if not below:
        return match.group()
    return f"{int(whole) * int(below) + int(above)}/{below}" if whole else f"{above}/{below}"


def _without_thousands(text: str) -> str:
    """Commas between groups of three digits, unless in brackets, where they part the elements of a tuple, set or interval."""
    inside = _in_brackets(text)
    return _THOUSANDS.sub(
        lambda match: match.group() if inside[match.start()] else re.sub(r"\D", "", match.group()),
        text,
    )


def _in_brackets(text: str) -> list[bool]:
    """For each place; the braces of a command's argument, an exponent or `{,}` are no brackets."""
    inside: list[bool] = []
    opened: list[bool] = []
    for position, character in enumerate(text):
        before = text[position - 1] if position else " "
        if character in "([":
            opened.append(True)
        elif character == "{":
            opened.append(before == "\\" or not (before.isalnum() or before in "}]^_"))
        elif character in ")]}" and opened:
            opened.pop()
        inside.append(any(opened))
    return inside


def _ascii_digit(character: str) -> str:
    if character.isascii() or (value := unicodedata.decimal(character, None)) is None:
        return character
    return str(value)


def same_value(first: str, second: str) -> bool | None:
    """Whether two answers are equal where that is plain to see; None where it takes computer algebra."""
    left, right = tidy(first), tidy(second)
    if left == right:
        return bool(left)
    if _based(left) != _based(right):
        return False  # algebra takes a base for an index and leaves it out
    numbers = _number(left), _number(right)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] == numbers[1]
    return None


def _based(text: str) -> list[tuple[str, int]]:
    """Digits and base of every number that names one; ten is what a number means without."""
    numbers = [((whole or bare).lstrip("0"), int(braced or base)) for whole, bare, braced, base in _BASED.findall(text)]
    return sorted((digits, base) for digits, base in numbers if 2 <= base <= 36 and base != 10)


def _number(text: str) -> Fraction | None:
    if len(text) > 60:
        return None
    if _NUMBER.match(text):
        return Fraction(text)
    if (match := _RATIO.match(text)) and int(match.group(2)):
        return Fraction(int(match.group(1)), int(match.group(2)))
    if (match := _MIXED.match(text)) and int(match.group(4)):
        whole = int(match.group(2)) + Fraction(int(match.group(3)), int(match.group(4)))
        return -whole if match.group(1) == "-" else whole
    if match := _LATEX_RATIO.match(text):
        sign, above, below, short_above, short_below = match.groups()
        numerator, denominator = int(above or short_above), int(below or short_below)
        return (-1 if sign == "-" else 1) * Fraction(numerator, denominator) if denominator else None
    return None
