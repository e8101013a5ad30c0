"""Tables of the simulation, read from YAML."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from libra_core import yaml_text
from libra_core.config.loading import checked

Table = TypeVar("Table", bound=BaseModel)


def load_table(path: str | Path, kind: type[Table], what: str) -> Table:
    """Raises `ConfigError` with the file and the first mistake; `what` names the table in the sentence."""
    return checked(read_mapping(path, what), kind, str(path))


def read_mapping(path: str | Path, what: str) -> dict[str, Any]:
    """Raises `ConfigError`; `what` names the file in the sentence."""
    return yaml_text.read_mapping(Path(path), what=what, examples="configs/study/")
