"""What comes in from user code or a file is checked once, where it enters; past that border it is taken as it is.

A value of user code (reward, tool return, call, submission, prompt) is refused with `BorderError`, a value of a file with
`ConfigError`: whose value it is, the value, what its place takes. Pure.
"""

import math
import numbers
import operator
import reprlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from libra_core.errors import BorderError, ConfigError, PromptError
from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus

MOST: Final = 1e9
"""Of a reward, a count or a number of seconds: far beyond any that is meant, and safe in every sum and square."""
_LONGEST_NAME: Final = 64
_NUMBERS: Final = (numbers.Real, Decimal)
_EPISODE: Final = ("step", "submission", "close")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnBounds:
    """What a tool return must keep to."""

    max_tokens: int
    """A longer one is cut in its middle."""
    vocabulary: int | None = None
    """Ids are below it; None where it is not known."""
    mark: tuple[int, ...] = ()
    """Tokens that stand where something was cut out."""


# ---- values of user code ----


def reward_of(value: Any, who: str) -> float:
    """A reward as a float; numbers of numpy and torch are taken as well. Raises `BorderError`."""
    return _number(value, f"the scorer of {who} returned", "a reward is a finite number", least=-MOST)


def episode_of(value: Any, who: str) -> Any:
    """What `reset` returned. Raises `BorderError`."""
    if missing := [name for name in _EPISODE if not callable(getattr(value, name, None))]:
        raise BorderError(f"reset of {who} returned {_shown(value)}; an episode has the method {missing[0]}")
    return value


def call_of(value: Any, who: str) -> ToolCall | None:
    """What `parse_call` returned. Raises `BorderError`."""
    if value is None:
        return None
    if not isinstance(value, ToolCall) or not _are_texts(value.tool, value.argument):
        raise BorderError(f"parse_call of {who} returned {_shown(value)}; it returns None or a ToolCall of two texts")
    return replace(value, tool=_named(value.tool))


def return_of(value: Any, who: str, bounds: ReturnBounds) -> ToolReturn:
    """What a tool answered, within its bounds. Raises `BorderError`."""
    if not isinstance(value, ToolReturn):
        raise BorderError(f"the tool of {who} returned {_shown(value)}; a tool returns a ToolReturn")
    if not _are_texts(value.tool):
        raise BorderError(f"the tool of {who} calls itself {_shown(value.tool)}; the name of a tool is a text")
    if value.status not in tuple(ToolStatus):
        raise BorderError(f"the tool of {who} returned the status {_shown(value.status)}; it is one of {', '.join(ToolStatus)}")
    seconds = [
        _number(given, f"the tool of {who} returned {name} =", "seconds are a number of 0 or more", least=0.0)
        for name, given in (("duration_s", value.duration_s), ("waited_s", value.waited_s))
    ]
    given = _listed(value.token_ids, f"the tool of {who}")
    kept = cut_middle(given, bounds.mark, bounds.max_tokens)
    return ToolReturn(
        tool=_named(value.tool),
        status=ToolStatus(value.status),
        token_ids=_ids(kept, f"the tool of {who}", bounds.vocabulary),
        duration_s=seconds[0],
        waited_s=seconds[1],
    )


def submission_of(value: Any, who: str) -> str:
    """What a trajectory leaves to be scored. Raises `BorderError`."""
    if not isinstance(value, str):
        raise BorderError(f"the submission of {who} is {_shown(value)}; it is a text, empty where there is none")
    return value


def require_room(prompt: Prompt, who: str, max_tokens: int) -> None:
    """Raises `PromptError` for a prompt of `who` after which nothing can be generated."""
    if not prompt.token_ids:
        raise PromptError(f"prompt {prompt.prompt_id} of {who} has no tokens")
    if len(prompt.token_ids) >= max_tokens:
        raise PromptError(
            f"prompt {prompt.prompt_id} of {who} has {len(prompt.token_ids)} tokens and leaves no room to answer within "
            f"rollout.max_context_tokens = {max_tokens}; raise that, or shorten the prompt"
        )


def prompt_of(value: Any, vocabulary: int | None) -> Prompt:
    """A prompt of a source, with token ids that its model knows. Raises `BorderError`."""
    if not isinstance(value, Prompt):
        raise BorderError(f"the source of prompts gave {_shown(value)}; it gives a Prompt")
    who = f"prompt {value.prompt_id}"
    for name in ("prompt_id", "text", "kind", "instance"):
        if not _are_texts(given := getattr(value, name)):
            raise BorderError(f"{who} has {name} = {_shown(given)}; it is a text")
    answers: Any = value.answers
    if not isinstance(answers, (tuple, list)) or not _are_texts(*answers):
        raise BorderError(f"{who} has the answers {_shown(answers)}; they are a list of texts, which may be empty")
    tokens = _ids(_listed(value.token_ids, who), who, vocabulary)
    return replace(value, token_ids=tokens, answers=tuple(answers))


def cut_middle(token_ids: Sequence[int], mark: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    """At most `max_tokens`: the beginning and the end, with `mark` between where it fits."""
    if len(token_ids) <= max_tokens:
        return tuple(token_ids)
    room = max_tokens - len(mark)
    if room < 2:
        return tuple(token_ids[: max(0, max_tokens)])
    head = room // 2
    return (*token_ids[:head], *mark, *token_ids[len(token_ids) - (room - head) :])


def _listed(value: Any, whose: str) -> Sequence[Any]:
    """Bytes are a sequence of numbers too, and never meant as token ids."""
    is_raw = isinstance(value, (str, bytes, bytearray, memoryview))
    plain = value.tolist() if hasattr(value, "tolist") else value
    if is_raw or not isinstance(plain, Sequence):
        raise BorderError(f"{whose} has the tokens {_shown(value)}; token ids are a sequence of whole numbers")
    return plain


def _ids(values: Sequence[Any], whose: str, vocabulary: int | None) -> tuple[int, ...]:
    bound = math.inf if vocabulary is None else vocabulary
    plain = all(type(value) is int for value in values)
    ids = tuple(values) if plain else tuple(_whole(value, whose) for value in values)
    if ids and (min(ids) < 0 or max(ids) >= bound):
        wrong = next(token_id for token_id in ids if not 0 <= token_id < bound)
        known = "0 or more" if vocabulary is None else f"0 to {vocabulary - 1}"
        raise BorderError(
            f"{whose} has the token id {wrong}; the model's vocabulary has {known}: is its tokenizer another one's?"
        )
    return ids


def _whole(value: Any, whose: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise BorderError(f"{whose} has the token {_shown(value)}; token ids are whole numbers") from None


def _number(value: Any, said: str, takes: str, *, least: float) -> float:
    plain = value
    if not isinstance(value, _NUMBERS) and callable(getattr(value, "item", None)):
        try:
            plain = value.item()
        except Exception:  # whatever user code raises there, it gave no number
            plain = None
    if isinstance(plain, _NUMBERS):
        try:
            number = float(plain)
        except (OverflowError, TypeError, ValueError):
            number = math.nan
        if least <= number <= MOST:
            return number
    raise BorderError(f"{said} {_shown(value)}; {takes}, at most {MOST:g}")


def _are_texts(*values: Any) -> bool:
    """Whatever a dataclass of user code was declared to hold."""
    return all(isinstance(value, str) for value in values)


def _named(name: str) -> str:
    """Short, and of characters that every log and file takes."""
    return name[:_LONGEST_NAME].encode(errors="replace").decode()


def _shown(value: Any) -> str:
    """Short, whatever it is."""
    return " ".join(reprlib.repr(value).split())[:120]


# ---- values of files ----


def text_of(value: Any, where: str) -> str:
    """A text with something to read in it, without the space around it. `where` names file, row and key."""
    if not isinstance(value, str):
        raise ConfigError(f"{where} is {_shown(value)}; it must be a text")
    if not is_readable(value):
        raise ConfigError(f"{where} is blank; leave the row out or write the text")
    return value.strip()


def answer_of(value: Any, where: str) -> str:
    """An accepted answer: a text, or a number, whole ones without their `.0`."""
    if isinstance(value, str):
        return text_of(value, where)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(
            f"{where} is {_shown(value)}; an answer is a text or a finite number: leave it out or write it as a text"
        )
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else str(value)


def count_of(value: Any, where: str) -> int:
    """A whole number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise ConfigError(f"{where} is {_shown(value)}; it must be a whole number from 0 to {MOST:g}")
    return value


def finite_of(value: Any, where: str, *, least: float = -MOST) -> float:
    """A number that can be calculated with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MOST:
        raise ConfigError(f"{where} is {_shown(value)}; it must be a number from {least:g} to {MOST:g}")
    return float(value)


def is_readable(text: str) -> bool:
    """Whether there is anything but space, controls and marks without width."""
    return any(unicodedata.category(character)[0] not in "ZC" for character in text)


def half_pair(value: Any) -> str | None:
    """The first text in a JSON value that holds half of a surrogate pair, which no tokenizer and no file takes; None without."""
    left = [value]
    while left:
        match left.pop():
            case str() as text if any("\ud800" <= character <= "\udfff" for character in text):
                return text
            case dict() as items:
                left += [*items, *items.values()]
            case list() as items:
                left += items
            case _:
                pass
    return None
