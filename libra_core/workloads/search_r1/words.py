"""Words of any script, in the form in which they are compared.

Scripts that write no space between words (Chinese, Japanese, Thai and the like, and Korean, whose words carry endings) give pairs
of neighbouring characters, as Lucene's CJK analysis does.
"""

import itertools
import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Final

_ASCII_WORD: Final = re.compile(r"[a-z0-9]+")
_WITHOUT_SPACES: Final = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer
    "\u1100-\u11ff\u3040-\u30ff\u31f0-\u31ff\u3130-\u318f\uac00-\ud7af"  # Hangul, kana
    "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # Han
)
_LETTER_WITH: Final = re.compile(r"LATIN SMALL LETTER ([A-Z]) WITH ")
_SPELT_OUT: Final = str.maketrans(
    {"\u0131": "i", "\u00e6": "ae", "\u0153": "oe", "\u00fe": "th", "\u00f0": "d"}
    | dict.fromkeys("\u02bb\u02bc\u02bd\u02be\u02bf", "'")
)
"""Letters of Latin that keyboards lack, as they are written there."""
_FOLDED_SCRIPTS: Final = ("LATIN", "GREEK", "ARABIC", "HEBREW")
"""Their marks are left out as often as written; elsewhere a mark makes another letter."""
_DIAERESIS: Final = "\u0308"


def words(text: str) -> list[str]:
    """In order: case, accents and forms of width folded; pairs of characters where words have no spaces."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return [piece for word in _any_word().findall(folded(text)) for piece in _pieces(word)]


def single_characters(text: str) -> list[str]:
    """Those of `words`' pairs, for queries of one character."""
    if text.isascii():
        return []
    return [unit for run in _runs(folded(text)) if len(run) > 1 for unit in run]


def split_unspaced(text: str) -> list[str]:
    """Parts between spaces, those without spaces in pairs of characters; nothing is folded."""
    return [piece for part in text.split() for piece in _pieces(part)]


def folded(text: str) -> str:
    """Without differences of case, width and accent that writers make at will."""
    plain: list[str] = []
    base = ""
    for character in unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold().translate(_SPELT_OUT)):
        category = unicodedata.category(character)
        if category == "Cf":
            continue
        if category != "Mn":
            base = character
            plain.append(_plain_letter(character))
        elif not _is_left_out(base, character):
            plain.append(character)
    return unicodedata.normalize("NFC", "".join(plain))


def _pieces(word: str) -> Iterator[str]:
    """A word of mixed scripts falls apart where they change."""
    rest = _WITHOUT_SPACES.search(word)
    if rest is None:
        yield word
        return
    for part in _split(word):
        if isinstance(part, str):
            yield part
        elif len(part) == 1:
            yield part[0]
        else:
            yield from ("".join(pair) for pair in itertools.pairwise(part))


def _runs(text: str) -> Iterator[list[str]]:
    for word in _any_word().findall(text):
        yield from (part for part in _split(word) if isinstance(part, list))


def _split(word: str) -> list[str | list[str]]:
    """Words as they are; characters without spaces as lists, each with its marks."""
    parts: list[str | list[str]] = []
    for character in word:
        before = parts[-1] if parts else None
        is_mark = unicodedata.category(character)[0] == "M"
        if isinstance(before, list) and is_mark:
            before[-1] += character
        elif _WITHOUT_SPACES.match(character):
            if isinstance(before, list):
                before.append(character)
            else:
                parts.append([character])
        elif isinstance(before, str):
            parts[-1] = before + character
        else:
            parts.append(character)
    return parts


@cache
def _any_word() -> "re.Pattern[str]":
    """Letters and digits with the marks that belong to them, which `\\w` leaves out."""
    marks = "".join(chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(f"[^\\W_](?:[^\\W_]|[{re.escape(marks)}])*")


@cache
def _plain_letter(character: str) -> str:
    """`ł`, `ø` and `đ` have no accent that could be taken off; their names tell their letter. Digits of any script are digits."""
    if not character.isascii() and (digit := unicodedata.decimal(character, None)) is not None:
        return str(digit)
    match = None if character.isascii() else _LETTER_WITH.match(unicodedata.name(character, ""))
    return match.group(1).lower() if match else character


@cache
def _is_left_out(base: str, mark: str) -> bool:
    name = unicodedata.name(base, "") if base else ""
    return name.startswith(_FOLDED_SCRIPTS) or (name.startswith("CYRILLIC") and mark == _DIAERESIS)
