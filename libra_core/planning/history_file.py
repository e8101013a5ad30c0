"""Length history on disk: one JSON object a line with the fields of `LengthRecord`."""

import json
from pathlib import Path
from typing import Any

from libra_core.errors import ConfigError
from libra_core.types.lengths import LengthRecord

_FIELDS = frozenset(LengthRecord.__dataclass_fields__)


def read_history(path: Path, *, of_a_run: bool = False) -> list[LengthRecord]:
    """Raises `ConfigError` that names the file and line of the first mistake.

    `of_a_run`: a run writes the file, or did until it was killed, so that its last line may end in the middle.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the length history {path}: {error}") from None
    lines = (text[: text.rfind("\n") + 1] if of_a_run else text).splitlines()
    return [_record(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _record(line: str, where: str) -> LengthRecord:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is no JSON object: {error.msg}") from None
    if not isinstance(values, dict) or not {"prompt_tokens", "generated_tokens"} <= set(values) <= _FIELDS:
        wanted = ", ".join(sorted(_FIELDS))
        raise ConfigError(f"{where} must hold prompt_tokens and generated_tokens, and nothing but {wanted}")
    return _checked(values, where)


def _checked(values: dict[str, Any], where: str) -> LengthRecord:
    try:
        step, engine = values.get("step"), values.get("engine")
        record = LengthRecord(
            prompt_tokens=int(values["prompt_tokens"]),
            generated_tokens=tuple(int(value) for value in values["generated_tokens"]),
            tool_tokens=tuple(int(value) for value in values.get("tool_tokens", ())),
            tool_s=tuple(float(value) for value in values.get("tool_s", ())),
            step=None if step is None else int(step),
            engine=None if engine is None else str(engine),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None
    numbers = (record.prompt_tokens, *record.generated_tokens, *record.tool_tokens, *record.tool_s)
    if not record.generated_tokens or sum(record.generated_tokens) < 1 or min(numbers) < 0:
        raise ConfigError(f"{where}: generated_tokens must name at least one token and no number may be negative")
    return record
