"""From YAML files and `--set` overrides to a `LibraConfig`, with one sentence for each mistake."""

import difflib
import functools
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from libra_core.config.base import kind_of, sections_of, text_key
from libra_core.config.databases import WITH_A_MEANING, sqlite_url
from libra_core.config.models import LibraConfig
from libra_core.config.paths import expanded, place_paths
from libra_core.errors import ConfigError, on_the_disk
from libra_core.shipped import shipped
from libra_core.yaml_text import parse_yaml, read_mapping

EXPERIMENTS = "experiment"
_EXTENDS = "extends"
_SHOWN = 200
"""Characters of a wrong value in a sentence."""
Checked = TypeVar("Checked", bound=BaseModel)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LibraConfig:
    """Read a YAML file (or one that Libra ships, by its name), its `extends` chain and `a.b=c` overrides.

    Raises:
        ConfigError: for a missing file, bad YAML, an unknown key (with the nearest valid one) or a bad value.
    """
    values = _read_chain(located(path, EXPERIMENTS), seen=())
    for override in overrides:
        apply_override(values, override, LibraConfig)
    return validate_config(values)


def validate_config(values: Mapping[str, Any]) -> LibraConfig:
    """Check a mapping against the models; raises `ConfigError` with every mistake in one message."""
    try:
        return LibraConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(detail) for detail in error.errors())) from None


def checked(values: Mapping[str, Any], kind: type[Checked], where: str) -> Checked:
    """Raises `ConfigError` with the first mistake; `where` begins the sentence."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        detail: dict[str, Any] = dict(error.errors()[0])
        if detail["type"] == "value_error":
            raise ConfigError(f"{where}: {detail['ctx']['error']}") from None
        name = ".".join(str(part) for part in detail["loc"])
        raise ConfigError(f"{where}: {name or 'file'}: {detail['msg'][:1].lower() + detail['msg'][1:]}") from None


def changed_config(config: LibraConfig, changes: Mapping[str, Any]) -> LibraConfig:
    """With these keys instead; what was never set stays so. Raises `ConfigError` where they do not go together."""
    return validate_config(_merge(config.model_dump(exclude_unset=True), changes))


def resolved_yaml(config: LibraConfig) -> str:
    """The complete configuration with every default filled in."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def data_folder() -> Path:
    """Folder of recorded data, `LIBRA_DATA` or `../shared/data`; it may not exist."""
    return Path(os.environ.get("LIBRA_DATA", "../shared/data"))


def prefect_address() -> str | None:
    """`PREFECT_API_URL`; unset where each process has a private server."""
    return os.environ.get("PREFECT_API_URL")


_FEW_TRANSACTIONS = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "100",
}
"""Prefect's server records each task event in a transaction of its own. On sqlite that burst collides with the start of the
next subflow: the server answers 503 and the client sleeps two seconds, in nearly every iteration."""


_PREFECT_DATABASES = {"PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL"}


def process_environment(root: Path, *, quiet: bool = False) -> None:
    """Settle where Prefect, MLflow and Ray keep their state and what they may send; values already set win.

    Call it before any of them is imported. `quiet` leaves Prefect's console to warnings (its server still gets every line).
    Raises `ResourceError` for a folder that cannot be made.
    """
    prefect = Path(os.environ.get("PREFECT_HOME", root / "prefect")).resolve()
    defaults = {
        "PREFECT_HOME": str(prefect),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(prefect / "memo_store.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        **_FEW_TRANSACTIONS,
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
        "GIT_PYTHON_REFRESH": "quiet",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }
    if quiet:
        defaults["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "WARNING"
        defaults["PREFECT_LOGGING_SERVER_LEVEL"] = "CRITICAL"  # each refusal is said by who asked; the server's traceback is long
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    home = Path(os.environ["PREFECT_HOME"])
    with on_the_disk(home, "choose another run.root or PREFECT_HOME"):
        home.mkdir(parents=True, exist_ok=True)
    if not os.environ.keys() & _PREFECT_DATABASES and any(mark in str(home) for mark in WITH_A_MEANING):
        # Prefect pastes the path into an address as it is.
        os.environ["PREFECT_API_DATABASE_CONNECTION_URL"] = sqlite_url(home.absolute() / "prefect.db", "aiosqlite")


def prefect_home() -> Path:
    """Where Prefect keeps its state, after `process_environment`."""
    return Path(os.environ["PREFECT_HOME"])


def tracking_uri_of_environment() -> str | None:
    """`MLFLOW_TRACKING_URI`, as whoever started this process has set it."""
    return os.environ.get("MLFLOW_TRACKING_URI") or None


@contextmanager
def kept_variable(name: str) -> Generator[None]:
    """What a library writes there inside the block is for itself; children and later configurations see what was there before."""
    before = os.environ.get(name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def server_environment(host: str, port: int) -> None:
    """Let a Prefect server that this process starts, and its pages, agree on their address."""
    address = f"http://{host}:{port}/api"
    settings = {
        "PREFECT_API_URL": address,
        "PREFECT_SERVER_API_HOST": host,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_API_URL": address,
    }
    os.environ.update(settings)


def located(path: str | Path, folder: str) -> Path:
    """The file that is meant: as it is written, or one that Libra ships in `configs/<folder>`, by its path or its name."""
    given = Path(expanded(str(path), "the path"))
    return given if given.exists() else shipped(str(given), folder) or given


def _read_chain(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    resolved = path.resolve()
    if resolved in seen:
        raise ConfigError(f"{path}: `extends` leads back to itself")
    if not path.exists():
        asked = f", which {seen[-1]} extends" if seen else ""
        raise ConfigError(f"no config file at {path}{asked}; examples lie in configs/experiment/")
    values = read_mapping(path, what="config file", examples="configs/experiment/")
    _leave_out_empty_sections(values, LibraConfig)
    parent = values.pop(_EXTENDS, None)
    place_paths(values, LibraConfig, path.absolute().parent)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise ConfigError(f"{path}: `extends` must name one file, got {parent!r}")
    return _merge(_read_chain(path.parent / expanded(parent, f"{path}: extends"), (*seen, resolved)), values)


def _leave_out_empty_sections(values: dict[Any, Any], model: type[BaseModel]) -> None:
    """A section whose keys are all commented out says nothing, and changes nothing of what its file extends."""
    for key in [key for key in values if key in model.model_fields]:
        for section in sections_of(model.model_fields[key].annotation):
            if values.get(key, 0) is None:
                del values[key]
            elif isinstance(values.get(key), dict):
                _leave_out_empty_sections(values[key], section)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def apply_override(values: dict[str, Any], override: str, model: type[BaseModel], folder: Path | None = None) -> None:
    """Set `a.b=c` in a tree of mappings as `model` reads it; text is taken whole, and paths start from `folder`, unset: from the
    working directory.

    Raises:
        ConfigError: when it is no `key=value`, or leads into a value.
    """
    key, separator, text = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or not all(path):
        raise ConfigError(f"--set needs key=value, got {override!r}; for example --set training.steps=10")
    *parents, leaf = path
    node = values
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {key}: {parent} is a value, not a section")
        node = child
    value = _value_of(text, _annotations(model, path), key)
    alone: dict[str, Any] = {leaf: value}
    placed = functools.reduce(lambda inner, parent: {parent: inner}, reversed(parents), alone)
    place_paths(placed, model, folder or Path.cwd())
    node[leaf] = alone[leaf]


def _value_of(text: str, annotations: Sequence[Any], key: str) -> Any:
    whole = [text_key(annotation) for annotation in annotations]
    if whole and all(item.is_text for item in whole):
        if text.strip() in ("", "null", "~") and any(item.may_be_unset for item in whole):
            return None
        return _unquoted(text)
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        if text[:1] in "[{":
            raise ConfigError(f"--set {key}: {text!r} is not valid YAML: {' '.join(str(error).split())}") from None
        return text


def _unquoted(text: str) -> str:
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0]:
        return text
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, str) else text


def _annotations(model: type[BaseModel], path: Sequence[str]) -> list[Any]:
    """Of the key in each section that may hold it; empty for an unknown one."""
    name, *rest = path
    info = model.model_fields.get(name)
    if info is None:
        return []
    if not rest:
        return [info.annotation]
    return [annotation for section in sections_of(info.annotation) for annotation in _annotations(section, rest)]


def _sentence(detail: Mapping[str, Any]) -> str:
    location, kinds = _without_kinds([str(part) for part in detail["loc"]])
    name = ".".join(location)
    match detail["type"]:
        case "extra_forbidden":
            return f"unknown key {name}{_of_kind(kinds)}{_nearest(location, kinds)}"
        case "union_tag_invalid":
            context = detail["ctx"]
            return f"{name}.kind = {context['tag']!r}: input should be one of {context['expected_tags']}"
        case "value_error":
            text = str(detail["ctx"]["error"])
            return text if name in text else f"{name}: {text}"
        case "invalid_key":
            return f"the key {location[-1]} of {'.'.join(location[:-1]) or 'the configuration'} is no text; keys are names"
        case _:
            message = detail["msg"][:1].lower() + detail["msg"][1:]
            bare = detail["type"] == "string_type" and isinstance(detail["input"], int | float)
            advice = "; write it in quotes" if bare else ""
            return f"{name or 'config'} = {_short(detail['input'])}: {message}{advice}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _of_kind(kinds: Mapping[str, str]) -> str:
    return "".join(f" (of kind {kind})" for kind in kinds.values())


def _without_kinds(location: list[str]) -> tuple[list[str], dict[str, str]]:
    """The path as people write it, and the chosen kind of each section on it that has several: pydantic mixes the two."""
    path: list[str] = []
    kinds: dict[str, str] = {}
    choices: tuple[type[BaseModel], ...] = (LibraConfig,)
    for part in location:
        chosen = [section for section in choices if len(choices) > 1 and kind_of(section) == part]
        if chosen:
            kinds[".".join(path)] = part
            choices = (chosen[0],)
            continue
        path.append(part)
        info = choices[0].model_fields.get(part) if choices else None
        choices = sections_of(info.annotation) if info else ()
    return path, kinds


def _nearest(location: Sequence[str], kinds: Mapping[str, str]) -> str:
    """The closest valid name: the same key in another section, else a like one in this section, else a like one anywhere."""
    *parents, leaf = location
    prefix = ".".join(parents)
    paths = _all_keys(LibraConfig, kinds)
    names = {path.rpartition(".")[2]: path for path in paths}
    siblings = [path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == prefix]
    if leaf in names:
        return f"; did you mean {names[leaf]}?"
    near = difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {'.'.join([*parents, near[0]])}?"
    near = difflib.get_close_matches(leaf, list(names), n=1, cutoff=0.6)
    if near:
        return f"; did you mean {names[near[0]]}?"
    return f"; valid here: {', '.join(siblings)}" if siblings else ""


def _all_keys(model: type[BaseModel], kinds: Mapping[str, str], prefix: str = "") -> list[str]:
    """Every key, of a section with several kinds only those of the chosen one or else of the first."""
    keys: list[str] = []
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        keys.append(path)
        members = sections_of(info.annotation)
        chosen = [section for section in members if path in kinds and kind_of(section) == kinds[path]]
        for section in (chosen or members)[:1]:
            keys.extend(_all_keys(section, kinds, f"{path}."))
    return keys
