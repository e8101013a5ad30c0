"""Length history on disk: one JSON object a line with the fields of `LengthRecord`."""

from pathlib import Path
from typing import Any

from libra_core.borders import count_of, finite_of
from libra_core.errors import ConfigError
from libra_core.files import json_objects
from libra_core.types.lengths import LengthRecord

_FIELDS = frozenset(LengthRecord.__dataclass_fields__)


def read_history(path: Path) -> list[LengthRecord]:
    """Raises `ConfigError` that names the file and line of the first mistake.

    Beside a journal the file is a run's, which writes it or did until it was killed: its last line may end in the middle.
    """
    of_a_run = path.with_name("journal.json").exists()
    return [_record(values, where) for values, where in json_objects(path, "length history", may_be_cut=of_a_run)]


def _record(values: dict[str, Any], where: str) -> LengthRecord:
    if not {"prompt_tokens", "generated_tokens"} <= set(values) <= _FIELDS:
        wanted = ", ".join(sorted(_FIELDS))
        raise ConfigError(f"{where} must hold prompt_tokens and generated_tokens, and nothing but {wanted}")
    step, engine = values.get("step"), values.get("engine")
    record = LengthRecord(
        prompt_tokens=count_of(values["prompt_tokens"], f"{where}: prompt_tokens"),
        generated_tokens=tuple(
            count_of(value, f"{where}: generated_tokens") for value in _list(values, "generated_tokens", where)
        ),
        tool_tokens=tuple(count_of(value, f"{where}: tool_tokens") for value in _list(values, "tool_tokens", where)),
        tool_s=tuple(finite_of(value, f"{where}: tool_s", least=0.0) for value in _list(values, "tool_s", where)),
        step=None if step is None else count_of(step, f"{where}: step"),
        engine=None if engine is None else str(engine),
    )
    if not sum(record.generated_tokens):
        raise ConfigError(f"{where}: generated_tokens must name at least one token")
    return record


def _list(values: dict[str, Any], name: str, where: str) -> list[Any]:
    result = values.get(name, [])
    if not isinstance(result, list):
        raise ConfigError(f"{where}: {name} must be a list, got {type(result).__name__}")
    return result
