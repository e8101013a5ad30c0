"""Problems from the public files, each schema as it is."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from libra_core.errors import ConfigError
from libra_core.workloads.chat import Message
from libra_core.workloads.dapo_math.answers import last_boxed
from libra_core.workloads.rows import Row, read_rows

BOXED: Final = "Please reason step by step, and put your final answer within \\boxed{}."
_GSM8K_ANSWER: Final = re.compile(r"####\s*(.+?)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class MathProblem:
    key: str
    messages: tuple[Message, ...]
    """As the policy sees them."""
    answer: str
    source: str
    """Schema or data set, the stratum of reports."""


def load_problems(path: Path) -> tuple[MathProblem, ...]:
    """Every problem of a file.

    Raises:
        ConfigError: for a file that cannot be read, holds nothing, or has a row of no known schema, with its number and keys.
    """
    problems: list[MathProblem] = []
    for number, row in enumerate(read_rows(path), start=1):
        problem = _problem(row, f"{path.name.partition('.')[0]}/{number}")
        if problem is None:
            raise ConfigError(f"{path}, row {number} is of no known schema: it has {_keys(row)}; known are {_KNOWN}")
        problems.append(problem)
    if not problems:
        raise ConfigError(f"{path} holds no rows")
    return tuple(problems)


def _problem(row: Row, key: str) -> MathProblem | None:
    for read in _SCHEMAS.values():
        if (problem := read(row, key)) is not None and problem.answer:
            return problem
    return None


def _dapo(row: Row, key: str) -> MathProblem | None:
    """`prompt` is a list of messages, `reward_model.ground_truth` the answer (DAPO-Math-17K, verl)."""
    messages, judged = row.get("prompt"), row.get("reward_model")
    if not isinstance(messages, list) or not messages or not isinstance(judged, dict) or judged.get("ground_truth") is None:
        return None
    if not all(isinstance(message, dict) and isinstance(message.get("content"), str) for message in messages):
        return None
    spoken = tuple(Message(role=str(message.get("role", "user")), content=message["content"]) for message in messages)
    source = str(row.get("data_source") or "dapo")
    return MathProblem(key=key, messages=spoken, answer=_text(judged["ground_truth"]), source=source)


def _gsm8k(row: Row, key: str) -> MathProblem | None:
    """`question`, and an `answer` whose last line is `#### 42`."""
    found = _GSM8K_ANSWER.search(str(row.get("answer", "")))
    if not isinstance(row.get("question"), str) or found is None:
        return None
    return _asked(key, row["question"], found.group(1).replace(",", ""), "gsm8k")


def _math(row: Row, key: str) -> MathProblem | None:
    """`problem` with an `answer`, or with a `solution` that boxes it (MATH, MATH-500)."""
    if not isinstance(row.get("problem"), str):
        return None
    answer = row.get("answer")
    if answer is None:
        answer = last_boxed(str(row.get("solution", "")))
    return None if answer is None else _asked(key, row["problem"], _text(answer), "math")


def _prompted(row: Row, key: str) -> MathProblem | None:
    """`prompt` is a text, with `answer` (AIME) or `ground_truth` (DeepMath)."""
    answer = row.get("ground_truth", row.get("answer"))
    if not isinstance(row.get("prompt"), str) or answer is None:
        return None
    return _asked(key, row["prompt"], _text(answer), str(row.get("source") or "prompt"))


def _asked(key: str, question: str, answer: str, source: str) -> MathProblem:
    content = question if "\\boxed" in question else f"{question}\n{BOXED}"
    return MathProblem(key=key, messages=(Message(role="user", content=content),), answer=answer, source=source)


def _text(value: Any) -> str:
    return str(value).strip()


def _keys(row: Row) -> str:
    return ", ".join(sorted(row)) or "no keys"


_SCHEMAS: Final[dict[str, Callable[[Row, str], MathProblem | None]]] = {
    "DAPO (prompt as messages, reward_model.ground_truth)": _dapo,
    "GSM8K (question, answer ending in ####)": _gsm8k,
    "MATH (problem, answer or boxed solution)": _math,
    "AIME and DeepMath (prompt as text, answer or ground_truth)": _prompted,
}
_KNOWN: Final = "; ".join(_SCHEMAS)
