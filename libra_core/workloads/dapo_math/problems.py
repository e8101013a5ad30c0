"""Problems from the public files, each schema as it is."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from libra_core.borders import answer_of, text_of
from libra_core.errors import ConfigError
from libra_core.workloads.chat import ChatMessage
from libra_core.workloads.dapo_math.answers import last_boxed, tidy
from libra_core.workloads.rows import Keys, Row, file_label, read_rows

BOXED: Final = "Please reason step by step, and put your final answer within \\boxed{}."
_GSM8K_ANSWER: Final = re.compile(r"####\s*(.+?)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class MathProblem:
    key: str
    messages: tuple[ChatMessage, ...]
    """As the policy sees them."""
    answer: str
    source: str
    """Schema or data set, the stratum of reports."""


def load_problems(path: Path, label: str = "", keys: Keys | None = None) -> tuple[MathProblem, ...]:
    """Every problem of a file; `label` begins their keys, and `keys` are those of other files.

    Raises:
        ConfigError: for a file that cannot be read, holds nothing, or has a row of no known schema, with its number and keys.
    """
    label, keys = label or file_label(path), keys or Keys()
    problems: list[MathProblem] = []
    for number, row in enumerate(read_rows(path), start=1):
        where = f"{path}, row {number}"
        problem = _problem(row, f"{label}/{number}", where)
        if problem is None:
            raise ConfigError(f"{where} is of no known schema: it has {_keys(row)}; known are {_KNOWN}")
        if keys.is_new(problem, where):
            problems.append(problem)
    if not problems:
        raise ConfigError(f"{path} holds no rows")
    return tuple(problems)


def _problem(row: Row, key: str, where: str) -> MathProblem | None:
    for read in _SCHEMAS.values():
        if (problem := read(row, key, where)) is not None:
            return problem
    return None


def _dapo(row: Row, key: str, where: str) -> MathProblem | None:
    """`prompt` is a list of messages, `reward_model.ground_truth` the answer (DAPO-Math-17K, verl)."""
    messages, judged = row.get("prompt"), row.get("reward_model")
    if not isinstance(messages, list) or not messages or not isinstance(judged, dict) or judged.get("ground_truth") is None:
        return None
    if not all(isinstance(message, dict) and isinstance(message.get("content"), str) for message in messages):
        return None
    spoken = tuple(ChatMessage(role=str(message.get("role", "user")), content=message["content"]) for message in messages)
    text_of("\n".join(message.content for message in spoken if message.role != "system"), f"{where}: prompt")
    answer = _answer(judged["ground_truth"], f"{where}: reward_model.ground_truth")
    return MathProblem(key=key, messages=spoken, answer=answer, source=str(row.get("data_source") or "dapo"))


def _gsm8k(row: Row, key: str, where: str) -> MathProblem | None:
    """`question`, and an `answer` whose last line is `#### 42`."""
    match = _GSM8K_ANSWER.search(str(row.get("answer", "")))
    if not isinstance(row.get("question"), str) or match is None:
        return None
    question = text_of(row["question"], f"{where}: question")
    return _asked(key, question, _answer(match.group(1), f"{where}: answer"), "gsm8k")


def _math(row: Row, key: str, where: str) -> MathProblem | None:
    """`problem` with an `answer`, or with a `solution` that boxes it (MATH, MATH-500)."""
    answer = row.get("answer")
    if answer is None:
        answer = last_boxed(str(row.get("solution", "")))
    if not isinstance(row.get("problem"), str) or answer is None:
        return None
    problem = text_of(row["problem"], f"{where}: problem")
    return _asked(key, problem, _answer(answer, f"{where}: answer"), "math")


def _prompted(row: Row, key: str, where: str) -> MathProblem | None:
    """`prompt` is a text, with `answer` (AIME) or `ground_truth` (DeepMath)."""
    name = "answer" if row.get("ground_truth") is None else "ground_truth"
    if not isinstance(row.get("prompt"), str) or row.get(name) is None:
        return None
    prompt = text_of(row["prompt"], f"{where}: prompt")
    return _asked(key, prompt, _answer(row[name], f"{where}: {name}"), str(row.get("source") or "prompt"))


def _asked(key: str, question: str, answer: str, source: str) -> MathProblem:
    content = question if "\\boxed" in question else f"{question}\n{BOXED}"
    return MathProblem(key=key, messages=(ChatMessage(role="user", content=content),), answer=answer, source=source)


def _answer(value: Any, where: str) -> str:
    """One that something written can equal."""
    answer = answer_of(value, where)
    if not tidy(answer):
        raise ConfigError(f"{where} = {answer!r} holds nothing to compare with; correct it or leave the row out")
    return answer


def _keys(row: Row) -> str:
    return ", ".join(sorted(row)) or "no keys"


_SCHEMAS: Final[dict[str, Callable[[Row, str, str], MathProblem | None]]] = {
    "DAPO (prompt as messages, reward_model.ground_truth)": _dapo,
    "GSM8K (question, answer ending in ####)": _gsm8k,
    "MATH (problem, answer or boxed solution)": _math,
    "AIME and DeepMath (prompt as text, answer or ground_truth)": _prompted,
}
_KNOWN: Final = "; ".join(_SCHEMAS)
