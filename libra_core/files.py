"""Users' text files as they are found: plain or gzipped, with or without a byte-order mark. Every mistake is a `ConfigError`."""

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from libra_core.borders import half_pair
from libra_core.errors import ConfigError

_GZIP: Final = b"\x1f\x8b"


def read_text(path: Path, what: str, *, otherwise: str = "") -> str:
    """The whole file; `what` names it in the sentence, `otherwise` says what to do where there is none."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == _GZIP else data).decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {what} {path}: it is not text that can be read ({error}); save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror or error}{otherwise}") from None
    except ValueError as error:  # a name that no file can have
        raise ConfigError(f"cannot read the {what} {str(path)!r}: {error}") from None
    if "\0" in text:  # English in UTF-16 without a mark is also UTF-8, with a zero beside every letter
        raise ConfigError(f"cannot read the {what} {path}: it holds zero bytes, as UTF-16 does; save it as UTF-8")
    return text


def parse_json(text: str, where: str) -> Any:
    """A JSON value whose texts are whole: what Python writes for NaN and infinity is read, half a surrogate pair is not."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    if "\\u" in text and (result := half_pair(value)) is not None:
        raise ConfigError(
            f"{where} holds half of a surrogate pair, in {ascii(result)[:80]}; remove it or write the whole character"
        )
    return value


def json_lines(path: Path, what: str, *, may_be_cut: bool = False) -> Iterator[tuple[Any, str]]:
    """The value of each line that is not empty, and where it stands. `may_be_cut` leaves out a last line without its end."""
    text = read_text(path, what)
    for number, line in enumerate((text[: text.rfind("\n") + 1] if may_be_cut else text).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield parse_json(line, where), where


def json_objects(path: Path, what: str, *, may_be_cut: bool = False) -> Iterator[tuple[dict[str, Any], str]]:
    """The same, of lines that all hold objects."""
    for value, where in json_lines(path, what, may_be_cut=may_be_cut):
        yield json_object(value, where), where


def json_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must hold an object, got {type(value).__name__}")
    return value


class CsvRow(dict[str, str]):
    """A line of a CSV file; its columns are texts, and a number is asked for where one is meant."""

    where: str = ""
    """File and line."""

    def __missing__(self, column: str) -> str:
        raise ConfigError(f"{self.where} has no column {column}; its columns are {', '.join(list(self)[:12])}")

    def number(self, column: str, *, above_zero: bool = False) -> float:
        """Finite, and 0 or more. Raises `ConfigError`."""
        try:
            value = float(self[column])
        except ValueError:
            value = math.nan
        if not (0.0 <= value < math.inf) or (above_zero and value == 0.0):
            raise ConfigError(
                f"{self.where} has {column} = {self[column][:40]!r}; it must be a number "
                f"{'above 0' if above_zero else 'of 0 or more'}"
            )
        return value


def csv_rows(path: Path, what: str) -> Iterator[CsvRow]:
    """The lines below the head of a CSV file; a line that is shorter than the head is refused."""
    reader = csv.reader(read_text(path, what).splitlines(keepends=True), strict=True)
    try:
        head = next(reader, [])
        for values in reader:
            where = f"{path}, line {reader.line_num}"
            if not values:
                continue
            if len(values) != len(head):
                raise ConfigError(f"{where} has {len(values)} columns, the head has {len(head)}")
            row = CsvRow(zip(head, values, strict=True))
            row.where = where
            yield row
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num} is no line of CSV: {error}") from None
