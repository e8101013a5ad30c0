"""Rows of a data file in any of the formats that data sets come in: parquet, JSON lines, a JSON list, each also gzipped."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from libra_core.errors import ConfigError
from libra_core.files import json_object, json_objects, parse_json, read_text

Row = Mapping[str, Any]
Item = TypeVar("Item")
FORMATS: Final = (".parquet", ".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz")
_WHAT: Final = "data file"
_LIKE_A_PLACE: Final = re.compile(r"#+\d+")


def read_rows(path: Path) -> Iterator[Row]:
    """Raises `ConfigError` for a file that is missing, damaged or of no known format, with the line where it can be named."""
    if not path.is_file():
        raise ConfigError(f"no data file at {path}; give the path of a {', '.join(FORMATS[:3])} file")
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        yield from _parquet(path)
    elif name.endswith((".jsonl", ".ndjson")):
        yield from (row for row, _ in json_objects(path, _WHAT))
    elif name.endswith(".json"):
        yield from _json_list(path)
    else:
        raise ConfigError(f"{path} has none of the endings {', '.join(FORMATS)}; rename or convert it")


def load_files(files: Sequence[str], load: Callable[[Path, str, "Keys"], Sequence[Item]]) -> list[Item]:
    """The rows of all files; `load` gets each file, its label and the keys so far."""
    paths, keys = [Path(file) for file in files], Keys()
    return [item for path, label in zip(paths, file_labels(paths), strict=True) for item in load(path, label, keys)]


def file_label(path: Path) -> str:
    return file_labels([path])[0]


def file_labels(paths: Sequence[Path]) -> tuple[str, ...]:
    """A short name for each file, different for each: its own without the ending, else with its folder before it.

    Raises:
        ConfigError: for a file that is named twice.
    """
    whole = [path.resolve() for path in paths]
    for parts in (1, 2):
        labels = tuple(_without_ending("/".join(path.parts[-parts:])) for path in whole)
        if len(set(labels)) == len(labels):
            return labels
    for number, path in enumerate(whole):
        if path in whole[:number]:
            raise ConfigError(f"{paths[number]} is named twice; its rows would be asked twice as often: leave one out")
    return tuple(str(path) for path in whole)


def _without_ending(name: str) -> str:
    for ending in sorted(FORMATS, key=len, reverse=True):
        name = name.removesuffix(ending)
    return name


def row_key(row: Row, number: int, where: str, *, names: Sequence[str] = ("id", "_id")) -> str:
    """The row's own id; without one its place, written so that it equals no id."""
    for name in names:
        value = _whole(row.get(name))
        if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
            raise ConfigError(f"{where}: {name} is {value!r}; an id is a text or a whole number")
        if value is not None and (own := str(value).strip()):
            return f"#{own}" if _LIKE_A_PLACE.fullmatch(own) else own
    return f"#{number}"


def _whole(value: Any) -> Any:
    """A table with rows that have no id holds its whole numbers as floats, and nan where there is none."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


class Keyed(Protocol):
    @property
    def key(self) -> str: ...


class Keys:
    """Every row has a key of its own; a row that is there twice, as in some published files, counts once."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Keyed, str]] = {}

    def is_new(self, item: Keyed, where: str) -> bool:
        """Raises `ConfigError` that names both rows when another one has the key."""
        known, other = self._seen.setdefault(item.key, (item, where))
        if known != item:
            raise ConfigError(f"{where} has the id {item.key!r}, as {other} has, and is another one; give each an id of its own")
        return other == where


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq  # heavy
    from pyarrow import ArrowException

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a parquet file that can be read: {' '.join(str(error).split())[:200]}") from None


def _json_list(path: Path) -> Iterator[Row]:
    rows = parse_json(read_text(path, _WHAT), str(path))
    if not isinstance(rows, list):
        raise ConfigError(f"{path} must hold a list of objects, got {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        yield json_object(row, f"{path}, element {number}")
