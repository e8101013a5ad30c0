"""Questions of the public files: Search-R1's own, NQ and HotpotQA style."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from libra_core.borders import answer_of, text_of
from libra_core.errors import ConfigError
from libra_core.workloads.rows import Keys, Row, file_label, read_rows, row_key
from libra_core.workloads.search_r1.scoring import comparable

_KNOWN: Final = "a text `question` with `golden_answers`, `answer`, `answers` or `reward_model.ground_truth.target`"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuestion:
    key: str
    text: str
    answers: tuple[str, ...]
    """Each of them is right."""
    source: str


def load_questions(path: Path, label: str = "", keys: Keys | None = None) -> tuple[FileQuestion, ...]:
    """Raises `ConfigError` for a file that cannot be read, is empty, or has a row without question, answers or own id."""
    label, keys = label or file_label(path), keys or Keys()
    number = 0
    questions: list[FileQuestion] = []
    for number, row in enumerate(read_rows(path), start=1):
        where = f"{path}, row {number}"
        result = _answers(row)
        if not isinstance(row.get("question"), str) or result is None:
            named = ", ".join(sorted(row)) or "no keys"
            raise ConfigError(f"{where} is no question: it has {named}; expected is {_KNOWN}")
        question = FileQuestion(
            key=f"{label}/{row_key(row, number, where)}",
            text=text_of(row["question"], f"{where}: question"),
            answers=_reachable(*result, where),
            source=str(row.get("data_source") or path.name.partition(".")[0]),
        )
        if keys.is_new(question, where):
            questions.append(question)
    if not number:
        raise ConfigError(f"{path} holds no rows")
    return tuple(questions)


def _answers(row: Row) -> tuple[str, Sequence[Any]] | None:
    """The first key that holds answers, and these."""
    values = [(name, row.get(name)) for name in ("golden_answers", "answers", "answer")]
    for name, answers in (*values, ("reward_model.ground_truth.target", _target(row))):
        if isinstance(answers, list) and answers:
            return name, answers
        if answers is not None and not isinstance(answers, list):
            return name, [answers]
    return None


def _reachable(name: str, result: Sequence[Any], where: str) -> tuple[str, ...]:
    """All answers, at least one of which something written can equal."""
    answers = tuple(answer_of(value, f"{where}: {name}") for value in result)
    if not any(comparable(answer) for answer in answers):
        raise ConfigError(
            f"{where}: {name} = {answers[0]!r} has no letter or digit, so that no answer can equal it; leave it out"
        )
    return answers


def _target(row: Row) -> Any:
    judged = row.get("reward_model")
    truth = judged.get("ground_truth") if isinstance(judged, Mapping) else None
    return truth.get("target") if isinstance(truth, Mapping) else None
