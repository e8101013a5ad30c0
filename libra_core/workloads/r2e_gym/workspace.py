"""A task's private copy, and what is carried from it to the hidden tests."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Final

from libra_core.workloads.r2e_gym.tasks import PACKAGES_FOLDER, RepairTask, faulty_source

_MAX_NAME: Final = 900
"""Characters of a changed file's path, so that it fits below any folder of the host in up to four bytes each."""
Changes = dict[str, str | None]
"""New texts of changed files by relative path; None for a removed one."""


class TaskFiles:
    """The sources behind the tasks of one prepared folder."""

    def __init__(self, prepared: Path) -> None:
        self._prepared = prepared
        self._digests: dict[str, dict[str, str]] = {}

    def fill(self, task: RepairTask) -> Callable[[Path], None]:
        """Writes the package with the task's fault into a folder."""
        return lambda work: self._write(task, work, {})

    def fill_with(self, task: RepairTask, changes: Changes) -> Callable[[Path], None]:
        """The same with a policy's changes on top."""
        return lambda work: self._write(task, work, changes)

    def manifest(self, task: RepairTask) -> dict[str, str]:
        """Checksums of all files as the policy finds them."""
        root = self._root(task)
        if task.package not in self._digests:
            files = sorted(path for path in root.rglob("*") if path.is_file())
            self._digests[task.package] = {str(path.relative_to(root)): _digest(path.read_bytes()) for path in files}
        return {**self._digests[task.package], task.path: _digest(self.faulty(task).encode())}

    def _root(self, task: RepairTask) -> Path:
        return self._prepared / PACKAGES_FOLDER / task.package

    def faulty(self, task: RepairTask) -> str:
        """The file with the fault, as the policy finds it."""
        return faulty_source((self._root(task) / task.path).read_bytes().decode(), task)

    def _write(self, task: RepairTask, work: Path, changes: Changes) -> None:
        shutil.copytree(self._root(task), work, dirs_exist_ok=True)
        (work / task.path).write_bytes(self.faulty(task).encode())
        for name in (name for name, text in changes.items() if text is None):
            (work / name).unlink(missing_ok=True)
        for name, text in changes.items():
            if text is not None:
                _put(work, PurePosixPath(name), text)


def _put(work: Path, name: PurePosixPath, text: str) -> None:
    """A policy may have made a folder of a file, or a file of a folder."""
    target = work / name
    for parent in reversed([work / part for part in name.parents]):
        if parent.exists() and not parent.is_dir():
            parent.unlink()
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text.encode())


def read_changes(submission: str) -> Changes | None:
    """The changes of a submission; None for one that is no set of relative paths with texts."""
    try:
        changes: Any = json.loads(submission)
    except (ValueError, RecursionError):
        return None
    if not isinstance(changes, dict):
        return None
    for name, text in changes.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or len(name) > _MAX_NAME:
            return None
        if text is not None and not isinstance(text, str):
            return None
    return changes


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
