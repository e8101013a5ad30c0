"""Tables of the simulation, read from YAML."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from libra_core import yaml_text
from libra_core.errors import ConfigError

Table = TypeVar("Table", bound=BaseModel)


def load_table(path: str | Path, kind: type[Table], what: str) -> Table:
    """Raises `ConfigError` with the file and the first mistake; `what` names the table in the sentence."""
    return checked(read_mapping(path, what), kind, str(path))


def read_mapping(path: str | Path, what: str) -> dict[str, Any]:
    """Raises `ConfigError`; `what` names the file in the sentence."""
    return yaml_text.read_mapping(Path(path), what=what, examples="configs/study/")


def checked(values: Mapping[str, Any], kind: type[Table], where: str) -> Table:
    """Raises `ConfigError` with the first mistake; `where` begins the sentence."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        detail: dict[str, Any] = dict(error.errors()[0])
        if detail["type"] == "value_error":
            raise ConfigError(f"{where}: {detail['ctx']['error']}") from None
        name = ".".join(str(part) for part in detail["loc"])
        raise ConfigError(f"{where}: {name or 'file'}: {detail['msg'][:1].lower() + detail['msg'][1:]}") from None
