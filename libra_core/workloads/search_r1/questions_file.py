"""Questions of the public files: Search-R1's own, NQ and HotpotQA style."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from libra_core.errors import ConfigError
from libra_core.workloads.rows import Row, read_rows

_KNOWN: Final = "a text `question` with `golden_answers`, `answer`, `answers` or `reward_model.ground_truth.target`"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuestion:
    key: str
    text: str
    answers: tuple[str, ...]
    """Each of them is right."""
    source: str


def load_questions(path: Path) -> tuple[FileQuestion, ...]:
    """Raises `ConfigError` for a file that cannot be read, is empty, or has a row without question or answers."""
    questions: list[FileQuestion] = []
    for number, row in enumerate(read_rows(path), start=1):
        text, answers = row.get("question"), _answers(row)
        if not isinstance(text, str) or not text.strip() or not answers:
            keys = ", ".join(sorted(row)) or "no keys"
            raise ConfigError(f"{path}, row {number} is no question: it has {keys}; expected is {_KNOWN}")
        name = path.name.partition(".")[0]
        key = str(row.get("id") or row.get("_id") or number)
        source = str(row.get("data_source") or name)
        questions.append(FileQuestion(key=f"{name}/{key}", text=text.strip(), answers=answers, source=source))
    if not questions:
        raise ConfigError(f"{path} holds no rows")
    return tuple(questions)


def _answers(row: Row) -> tuple[str, ...]:
    for found in (row.get("golden_answers"), row.get("answers"), row.get("answer"), _target(row)):
        texts = [found] if isinstance(found, (str, int, float)) else found if isinstance(found, list) else []
        kept = tuple(str(text).strip() for text in texts if str(text).strip())
        if kept:
            return kept
    return ()


def _target(row: Row) -> Any:
    judged = row.get("reward_model")
    truth = judged.get("ground_truth") if isinstance(judged, Mapping) else None
    return truth.get("target") if isinstance(truth, Mapping) else None
