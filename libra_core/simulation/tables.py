"""Tables of the simulation, read from YAML."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from libra_core.errors import ConfigError

Table = TypeVar("Table", bound=BaseModel)


def load_table(path: str | Path, kind: type[Table], what: str) -> Table:
    """Raises `ConfigError` with the file and the first mistake; `what` names the table in the sentence."""
    return checked(read_mapping(path, what), kind, str(path))


def read_mapping(path: str | Path, what: str) -> dict[str, Any]:
    """Raises `ConfigError`; `what` names the file in the sentence."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}; examples lie in configs/study/") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping, got {type(values).__name__}")
    return values


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
