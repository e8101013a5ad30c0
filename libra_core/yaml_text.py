"""YAML without surprises: what a plain word means is what it looks like, and nothing is said twice.

Against YAML 1.1, which PyYAML reads: `010` and `1:30` are text (not 8 and 90), so are `yes`, `off` and dates; `1e-5` is a number.
"""

import math
import re
from pathlib import Path
from typing import Any

import yaml

from libra_core.errors import ConfigError
from libra_core.files import read_text

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0o[0-7_]+)$")
_FLOAT = re.compile(
    r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$"
    r"|\.(?:nan|NaN|NAN)$"
)
_STRANGE = "found character that cannot start any token"
_MAX_DIGITS = 4000
"""Python reads no longer whole number from text."""
_MAX_VALUES = 1_000_000


class PlainLoader(_BASE):
    """Builds mappings, lists, text, numbers, true, false and null; refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            _refuse_twins(node)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> int:
        text = self.construct_scalar(node).replace("_", "")
        if len(text) > _MAX_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, f"a number of {len(text)} digits", node.start_mark)
        return int(text, 0)

    def construct_yaml_float(self, node: Any) -> float:
        text = self.construct_scalar(node).replace("_", "").lower()
        value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
        if not math.isfinite(value):
            raise yaml.constructor.ConstructorError(None, None, f"{text} is not a finite number", node.start_mark)
        return value


PlainLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("merge", re.compile(r"<<$"), "<"),
):
    PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, list(_first))
PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.construct_yaml_int)
PlainLoader.add_constructor("tag:yaml.org,2002:float", PlainLoader.construct_yaml_float)


def parse_yaml(text: str) -> Any:
    """Raises `yaml.YAMLError`, whose text says where."""
    try:
        return _refuse_endless(yaml.load(text, PlainLoader))
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except ValueError as error:  # of a tag that somebody wrote, such as `!!int x`
        raise yaml.YAMLError(str(error)) from None


def read_mapping(path: Path, *, what: str, examples: str) -> dict[str, Any]:
    """The mapping in a file, empty for an empty file; `what` names the file in a sentence, `examples` the folder of others.

    Raises:
        ConfigError: when it is missing, unreadable, no YAML, or no mapping.
    """
    try:
        values = parse_yaml(read_text(path, what, otherwise=f"; examples lie in {examples}"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_in_one_line(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping, got {type(values).__name__}")
    return values


def _refuse_endless(value: Any) -> Any:
    """The value; an alias inside what it names has no end, and aliases of aliases have none to wait for."""
    sizes: dict[int, int] = {}

    def size(item: Any) -> int:
        if not isinstance(item, dict | list):
            return 1
        if id(item) not in sizes:
            sizes[id(item)] = 0  # while it is open
            sizes[id(item)] = 1 + sum(size(inner) for inner in (item.values() if isinstance(item, dict) else item))
        elif not sizes[id(item)]:
            raise yaml.YAMLError("an alias (*name) stands inside the value that it names")
        return sizes[id(item)]

    if size(value) > _MAX_VALUES:
        raise yaml.YAMLError(f"its aliases (*name) stand for more than {_MAX_VALUES:,} values")
    return value


def _refuse_twins(node: yaml.MappingNode) -> None:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        if key.value in lines:
            raise yaml.constructor.ConstructorError(
                None, None, f"{key.value!r} stands on line {lines[key.value]} and again on line {line}; keep one", None
            )
        lines[key.value] = line


def _in_one_line(error: yaml.YAMLError) -> str:
    said = str(error).replace(_STRANGE, f"{_STRANGE}; indent with spaces, not with tabs,")
    return " ".join(said.replace('in "<unicode string>", ', "on ").replace('in "<byte string>", ', "on ").split())
