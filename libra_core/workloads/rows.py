"""Rows of a data file in any of the formats that data sets come in: parquet, JSON lines, a JSON list, each also gzipped."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from libra_core.errors import ConfigError

Row = Mapping[str, Any]
FORMATS: Final = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz")


def read_rows(path: Path) -> Iterator[Row]:
    """Raises `ConfigError` for a file that is missing, damaged or of no known format, with the line where it can be named."""
    if not path.is_file():
        raise ConfigError(f"no data file at {path}; give the path of a {', '.join(FORMATS[:3])} file")
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        yield from _parquet(path)
    elif name.endswith(".jsonl"):
        yield from _json_lines(path)
    elif name.endswith(".json"):
        yield from _json_list(path)
    else:
        raise ConfigError(f"{path} has none of the endings {', '.join(FORMATS)}; rename or convert it")


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq  # heavy
    from pyarrow import ArrowException

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise ConfigError(f"{path} is not a parquet file that can be read: {' '.join(str(error).split())[:200]}") from None


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.name.endswith(".gz") else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"{path} is not text that can be read: {error}") from None


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number} is not JSON: {error}") from None
        yield _checked(row, f"{path}, line {number}")


def _json_list(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise ConfigError(f"{path} must hold a list of objects, got {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        yield _checked(row, f"{path}, element {number}")


def _checked(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise ConfigError(f"{where} must hold an object, got {type(row).__name__}")
    return row
