"""Tasks made of installed packages, as they are kept on disk."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from libra_core.errors import ConfigError

TASKS_FILE: Final = "tasks.jsonl"
PACKAGES_FOLDER: Final = "packages"
MANIFEST_FILE: Final = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTest:
    """Examples of one docstring, which the code must give."""

    name: str
    module: str
    docstring: str
    names: dict[str, str]
    """Names that the examples take for granted, and the modules they stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTask:
    """One function of one package with one fault in it."""

    key: str
    package: str
    path: str
    """Of the faulty file, from the working folder."""
    line: int
    before: str
    """The line as it should be; known to the scripted agent alone."""
    after: str
    issue: str
    tests: tuple[HiddenTest, ...]
    """The faulty function's first, then some of its neighbours', against repairs that break them."""


def write_tasks(folder: Path, tasks: Sequence[RepairTask]) -> None:
    text = "".join(json.dumps(asdict(task)) + "\n" for task in tasks)
    (folder / TASKS_FILE).write_text(text, encoding="utf-8")


def read_tasks(folder: Path) -> tuple[RepairTask, ...]:
    """Raises `ConfigError` for a folder that `libra data prepare r2e_gym` has not finished."""
    path = folder / TASKS_FILE
    if not path.is_file():
        raise ConfigError(f"no tasks in {folder}; `libra data prepare r2e_gym` makes them")
    try:
        return tuple(_task(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); remove {folder}, `libra data prepare r2e_gym` makes it anew") from None


def file_digests(folder: Path) -> dict[str, str]:
    """Checksums of the files below, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): digest_of(path) for path in files}


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def faulty_source(source: str, task: RepairTask) -> str:
    """The module with the fault of the task in it."""
    lines = source.split("\n")
    if lines[task.line - 1] != task.before:
        raise ConfigError(f"{task.path} is not what task {task.key} was made of; make the tasks again")
    return "\n".join([*lines[: task.line - 1], task.after, *lines[task.line :]])


def _task(row: dict[str, Any]) -> RepairTask:
    tests = tuple(HiddenTest(**test) for test in row.pop("tests"))
    return RepairTask(tests=tests, **row)
