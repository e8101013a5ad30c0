"""From YAML files and `--set` overrides to a `LibraConfig`, with one sentence for each mistake."""

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from libra_core.config.models import LibraConfig
from libra_core.errors import ConfigError

_EXTENDS = "extends"


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LibraConfig:
    """Read a YAML file, its `extends` chain and `a.b=c` overrides.

    Raises:
        ConfigError: for a missing file, bad YAML, an unknown key (with the nearest valid one) or a bad value.
    """
    values = _read_chain(Path(path), seen=())
    for override in overrides:
        _apply_override(values, override)
    return validate_config(values)


def validate_config(values: Mapping[str, Any]) -> LibraConfig:
    """Check a mapping against the models; raises `ConfigError` with every mistake in one message."""
    try:
        return LibraConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(detail) for detail in error.errors())) from None


def resolved_yaml(config: LibraConfig) -> str:
    """The complete configuration with every default filled in."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def data_folder() -> Path:
    """Folder of recorded data, `LIBRA_DATA` or `../shared/data`; it may not exist."""
    return Path(os.environ.get("LIBRA_DATA", "../shared/data"))


def _read_chain(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    resolved = path.resolve()
    if resolved in seen:
        raise ConfigError(f"{path}: `extends` leads back to itself")
    values = _read_yaml(path)
    parent = values.pop(_EXTENDS, None)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise ConfigError(f"{path}: `extends` must name one file, got {parent!r}")
    return _merge(_read_chain(path.parent / parent, (*seen, resolved)), values)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config file at {path}; the examples lie in configs/experiment/") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of sections, got {type(values).__name__}")
    return values


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set needs key=value, got {override!r}; for example --set training.steps=10")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    *parents, leaf = key.strip().split(".")
    node = values
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {key}: {parent} is a value, not a section")
        node = child
    node[leaf] = value


def _sentence(detail: Mapping[str, Any]) -> str:
    location = [str(part) for part in detail["loc"]]
    name = ".".join(location)
    match detail["type"]:
        case "extra_forbidden":
            return f"unknown key {name}{_nearest(location)}"
        case "value_error":
            return str(detail["ctx"]["error"])
        case _:
            message = detail["msg"][:1].lower() + detail["msg"][1:]
            return f"{name or 'config'} = {detail['input']!r}: {message}"


def _nearest(location: Sequence[str]) -> str:
    """The closest valid name: first among the section's own keys, then anywhere."""
    *parents, leaf = location
    prefix = ".".join(parents)
    names = {key: path for path in _all_keys(LibraConfig) for key in [path.rpartition(".")[2]]}
    siblings = [path.rpartition(".")[2] for path in _all_keys(LibraConfig) if path.rpartition(".")[0] == prefix]
    near = difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {'.'.join([*parents, near[0]])}?"
    near = difflib.get_close_matches(leaf, list(names), n=1, cutoff=0.6)
    if near:
        return f"; did you mean {names[near[0]]}?"
    return f"; valid here: {', '.join(siblings)}" if siblings else ""


def _all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        keys.append(path)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            keys.extend(_all_keys(info.annotation, f"{path}."))
    return keys
