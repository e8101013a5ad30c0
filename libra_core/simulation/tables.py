"""Tables of the simulation, read from YAML."""

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from libra_core.errors import ConfigError

Table = TypeVar("Table", bound=BaseModel)


def load_table(path: str | Path, kind: type[Table], what: str) -> Table:
    """Raises `ConfigError` with the file and the first mistake; `what` names the table in the sentence."""
    try:
        return kind.model_validate(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        detail = error.errors()[0]
        name = ".".join(str(part) for part in detail["loc"])
        raise ConfigError(f"{path}: {name or 'file'}: {detail['msg'][:1].lower() + detail['msg'][1:]}") from None
