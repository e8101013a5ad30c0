"""`docs/configuration.md`, made from the models and their docstrings."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from libra_core.config.base import kind_of, sections_of
from libra_core.config.models import LibraConfig

_HEADER = """# Configuration

Made by `libra docs config` from the models in `libra_core/config/`; a test keeps it up to date.

A run is one YAML file, also one that Libra ships by its name (`libra train quickstart`). `extends: other.yaml` takes another
file's values first. `--set a.b=c` changes one value, as often as wanted. Unknown keys are refused with the nearest valid one,
and a key that stands twice with both lines. `libra config show FILE` prints the complete result.

**Paths.** What a run reads is named from the file that names it, with `--set` from the working directory. What it writes
(`run.root`, `workload.prepared`) and the run that it goes on with (`run.resume`) start from the working directory in both. `~`,
`$NAME` and `${NAME}` are filled in. A path `configs/…` that is not there means the file of that name that Libra ships.

**Values.** A plain word means what it looks like: `010`, `1:30` and dates are text, `1e-5` is a number. `--set` takes the text
of a text key whole, with blanks and `#`. Numbers are finite and not in quotes. Where no narrower bound is given, whole numbers
end at 2,147,483,647, seconds (keys that end in `_s`) at 31,622,400, a year, and others at 1e18.
"""


def configuration_markdown() -> str:
    """Every key with its default and meaning, one table per section."""
    return _HEADER + "".join(_sections(LibraConfig, "")).rstrip() + "\n"


def _sections(model: type[BaseModel], path: str, note: str = "") -> Iterator[str]:
    plain = {name: info for name, info in model.model_fields.items() if not sections_of(info.annotation)}
    if plain:
        rows = "\n".join(_row(name, info) for name, info in plain.items())
        title = f"## `{path}`{note}" if path else "## Top level"
        text = " ".join((model.__doc__ or "").split())
        yield f"\n{title}\n\n{text}\n\n| key | default | meaning |\n|---|---|---|\n{rows}\n"
    for name, info in model.model_fields.items():
        members = sections_of(info.annotation)
        for section in members:
            note = f", kind `{kind_of(section)}`" if len(members) > 1 else ""
            yield from _sections(section, f"{path}.{name}".removeprefix("."), note)


def _row(name: str, info: FieldInfo) -> str:
    meaning = " ".join((info.description or "").split())
    choices = _choices(info)
    text = " ".join(part for part in (meaning, choices) if part).replace("|", "\\|")
    return f"| `{name}` | `{_plain(info.get_default(call_default_factory=True))}` | {text} |"


def _choices(info: FieldInfo) -> str:
    literals = [value for value in getattr(info.annotation, "__args__", ()) if isinstance(value, str)]
    bounds = [f"{sign} {getattr(item, name)}" for item in info.metadata for name, sign in _SIGNS.items() if hasattr(item, name)]
    parts = [f"One of {', '.join(f'`{value}`' for value in literals)}."] if literals else []
    return " ".join([*parts, *([f"({', '.join(bounds)})"] if bounds else [])])


_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(item) for item in value) + "]"  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, BaseModel):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.model_dump().items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else str(value)
