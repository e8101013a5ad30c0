"""Paths in a configuration: whose folder they start from, and `~` and `$NAME` in them.

What a run reads is named from the file that names it, or with `--set` from the working directory. What it writes (`run.root`,
`workload.prepared`) and the run that it goes on with (`run.resume`) start from the working directory in both.
"""

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from libra_core.config.base import sections_of
from libra_core.errors import ConfigError
from libra_core.shipped import shipped

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[^}]*)\}|(?P<bare>[A-Za-z_][A-Za-z0-9_]*))")
_NAME_BYTES = 200
"""Of 255 that a file system allows; the rest is for a time, a seed and a number."""


@dataclass(frozen=True, slots=True)
class PathKind:
    """Marks a key that holds a path, or several."""

    read: bool
    """Read by the run, else written."""
    shipped: str | None = None
    """Folder of `configs/` whose files may be named without a path."""
    word: str | None = None
    """That may stand in place of a path."""


InputPath = Annotated[str, PathKind(read=True)]
OutputPath = Annotated[str, PathKind(read=False)]
PLAN_AUTO = "auto"
PlanPath = Annotated[str, PathKind(read=True, word=PLAN_AUTO)]


def _of_shipped(folder: str) -> AfterValidator:
    return AfterValidator(lambda text: str(shipped(text, folder) or text))


DevicePath = Annotated[str, PathKind(read=True, shipped="hardware")]
ModelPath = Annotated[str, PathKind(read=True, shipped="model")]
TruthPath = Annotated[str, PathKind(read=True, shipped="study/truth"), _of_shipped("study/truth")]
LawPath = Annotated[str, PathKind(read=True, shipped="study/workloads"), _of_shipped("study/workloads")]
SystemsPath = Annotated[str, PathKind(read=True, shipped="study"), _of_shipped("study")]


def one_folder(name: str) -> str:
    """The name, if it can be that of one folder; raises `ValueError`."""
    encoded = name.encode("utf-8", "replace")
    if not name.strip() or name != name.strip() or name in (".", ".."):
        raise ValueError(f"{name!r} cannot name a folder; write a word such as `run`, without blanks around it")
    if "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"{name!r} cannot name a folder: it holds a slash or a character that cannot be printed; leave it out")
    if len(encoded) > _NAME_BYTES:
        raise ValueError(
            f"a name of {len(encoded)} bytes is too long for a folder; {_NAME_BYTES} are allowed, write a shorter one"
        )
    return name


FolderName = Annotated[str, AfterValidator(one_folder)]
"""Text that becomes the name of one folder."""


def expanded(text: str, key: str) -> str:
    """With the home folder for `~` and with values for `$NAME` and `${NAME}`.

    Raises:
        ConfigError: for a variable or a user that is not there, or for what no path can be; `key` begins the sentence.
    """
    if not text.strip() or "\0" in text:
        raise ConfigError(f"{key} = {text!r} is no path; name a file or folder, or leave the key out")
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise ConfigError(f"{key} = {text!r} holds a line's end or another control character; rename the folder, or leave it out")

    def value(match: re.Match[str]) -> str:
        name = match["braced"] if match["bare"] is None else match["bare"]
        placed = os.environ.get(name)
        if not placed:
            raise ConfigError(f"{key} = {text!r}: the environment has no {name or 'such name'}; set it, or write the path out")
        return placed

    filled = _VARIABLE.sub(value, text)
    home = os.path.expanduser(filled)
    if filled.startswith("~") and home == filled:
        raise ConfigError(f"{key} = {text!r}: no home folder of {filled.split('/')[0]!r} is known; write the path out")
    return home


def place_paths(values: dict[str, Any], model: type[BaseModel], folder: Path) -> None:
    """Replace every path in `values`, a tree as `model` reads it: those that are read start from `folder`.

    Raises:
        ConfigError: for a path that cannot be expanded.
    """
    for keys, kind in _path_keys(model):
        *parents, leaf = keys
        node: Any = values
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            continue
        placed = node.get(leaf)
        name = ".".join(keys)
        if isinstance(placed, str):
            node[leaf] = _placed(placed, kind, folder, name)
        elif isinstance(placed, list | tuple):
            node[leaf] = [_placed(item, kind, folder, name) if isinstance(item, str) else item for item in placed]


def _placed(text: str, kind: PathKind, folder: Path, key: str) -> str:
    if text == kind.word:
        return text
    path = expanded(text, key)
    if not kind.read or os.path.isabs(path):
        return path
    beside = folder / path
    if os.path.lexists(beside):
        return str(beside)
    placed = shipped(path, kind.shipped or "")
    if placed is not None and (kind.shipped is None or os.sep in path):
        return str(placed)
    is_name = kind.shipped is not None and os.sep not in path and not path.endswith((".yaml", ".yml", ".json"))
    return path if is_name or placed is not None else str(beside)


@lru_cache
def _path_keys(model: type[BaseModel]) -> tuple[tuple[tuple[str, ...], PathKind], ...]:
    return tuple(_find_keys(model, ()))


def _find_keys(model: type[BaseModel], prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], PathKind]]:
    for name, info in model.model_fields.items():
        kind = path_kind(info)
        if kind is not None:
            yield (*prefix, name), kind
        for section in sections_of(info.annotation):
            yield from _find_keys(section, (*prefix, name))


def path_kind(info: FieldInfo) -> PathKind | None:
    """What kind of path a key holds; None for another value."""
    return next((item for item in (*info.metadata, *_markers(info.annotation)) if isinstance(item, PathKind)), None)


def _markers(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for part in get_args(annotation):
        if not isinstance(part, PathKind):
            yield from _markers(part)


def read_paths(config: BaseModel) -> Mapping[str, tuple[str, ...]]:
    """Every path that a run reads, by key; keys that are unset are left out."""
    placed: dict[str, tuple[str, ...]] = {}
    for keys, kind in _path_keys(type(config)):
        value: Any = config
        for key in keys:
            value = getattr(value, key, None)
        if kind.read and value:
            placed[".".join(keys)] = (value,) if isinstance(value, str) else tuple(value)
    return placed
