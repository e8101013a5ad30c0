"""Makes the embedded tasks: faults in functions of installed packages that the functions' own examples notice."""

import asyncio
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from libra_core.config.sandbox import SandboxConfig
from libra_core.errors import ConfigError, on_the_disk
from libra_core.workloads.r2e_gym.mutation import FunctionSource, Mutant, functions_with_examples, mutants
from libra_core.workloads.r2e_gym.packages import ALIASES, PACKAGES, copy_package, module_name, package_versions
from libra_core.workloads.r2e_gym.tasks import (
    MANIFEST_FILE,
    PACKAGES_FOLDER,
    TASKS_FILE,
    HiddenTest,
    RepairTask,
    digest_of,
    file_digests,
    read_tasks,
    write_tasks,
)
from libra_core.workloads.r2e_gym.tools import script_command, script_source
from libra_core.workloads.sandbox.host import SandboxHost
from libra_core.workloads.sandbox.types import Sandbox

Report = Callable[[str, float], None]
"""Told what is being done and the share that is done, 0..1."""

_MAX_TASKS_PER_PACKAGE: Final = 70
_MUTANTS_PER_FUNCTION: Final = 6
_NEIGHBOURS: Final = 1
_CHUNK: Final = 20
_TEST_WALL_S: Final = 10.0
_MIN_TASKS: Final = 200
_SEED: Final = 1
_LIMITS: Final = {"wall_s": 900.0, "cpu_s": 900.0, "memory_mib": 1024, "output_kib": 4096}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    package: str
    path: Path
    """From the working folder."""
    function: FunctionSource
    mutants: tuple[Mutant, ...]

    @property
    def module(self) -> str:
        return module_name(self.path)

    @property
    def names(self) -> dict[str, str]:
        return ALIASES.get(self.package, {})

    @property
    def test(self) -> HiddenTest:
        name = f"{self.module}.{self.function.qualname}"
        return HiddenTest(name=name, module=self.module, docstring=self.function.docstring, names=self.names)


def ensure_tasks(folder: Path, sandbox: SandboxConfig, report: Report) -> tuple[RepairTask, ...]:
    """The tasks in `folder`, made now (minutes on two cores) when it has none or other package versions than are installed.

    Raises:
        ResourceError: when the host can isolate nothing.
        ConfigError: when a package is missing or too few tasks come out.
    """
    if is_current(folder):
        return read_tasks(folder)
    with ExitStack() as stack:
        with on_the_disk(folder.parent, "name another workload.prepared"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(folder.with_name(folder.name + ".lock")))
        if not is_current(folder):
            asyncio.run(_prepare(folder, sandbox, report))
    return read_tasks(folder)


def is_current(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        is_whole = manifest["sha256"][TASKS_FILE] == digest_of(folder / TASKS_FILE)
        return bool(is_whole and manifest["versions"] == package_versions())
    except (OSError, ValueError, KeyError, TypeError):
        return False


async def _prepare(folder: Path, sandbox: SandboxConfig, report: Report) -> None:
    scratch = folder.with_name(folder.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    host = SandboxHost(sandbox.model_copy(update=_LIMITS))
    tasks: list[RepairTask] = []
    for number, package in enumerate(PACKAGES):
        copy_package(package, scratch / PACKAGES_FOLDER / package)
        maker = _TaskMaker(scratch / PACKAGES_FOLDER / package, package, host)
        tasks += await maker.make(lambda done, number=number, package=package: report(package, (number + done) / len(PACKAGES)))
    if len(tasks) < _MIN_TASKS:
        raise ConfigError(f"only {len(tasks)} tasks came out of {', '.join(PACKAGES)}; {_MIN_TASKS} are needed")
    write_tasks(scratch, tasks)
    counts = {package: sum(task.package == package for task in tasks) for package in PACKAGES}
    manifest = {"versions": package_versions(), "tasks": counts, "sha256": file_digests(scratch)}
    (scratch / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)
    report("tasks are ready", 1.0)


class _TaskMaker:
    """One package: list functions, try faults, keep those that hidden tests really tell apart."""

    def __init__(self, root: Path, package: str, host: SandboxHost) -> None:
        self._root = root
        self._package = package
        self._host = host

    async def make(self, report: Callable[[float], None]) -> list[RepairTask]:
        candidates = list(_candidates(self._root, self._package))
        random.Random(f"{_SEED}/{self._package}").shuffle(candidates)
        candidates = candidates[: 4 * _MAX_TASKS_PER_PACKAGE]
        tasks: list[RepairTask] = []
        passing: list[_Candidate] = []
        async with self._host.opened(lambda work: _fill(self._root, work)) as sandbox:
            for start in range(0, len(candidates), _CHUNK):
                chunk = candidates[start : start + _CHUNK]
                verdicts = await _printed(sandbox, "trial.py", {"functions": [_trial(candidate) for candidate in chunk]})
                judged = list(zip(chunk, verdicts, strict=False))
                passing += [candidate for candidate, verdict in judged if verdict is not None]
                noticed = [(candidate, verdict) for candidate, verdict in judged if verdict and verdict["mutant"] >= 0]
                made = [_task(candidate, verdict, passing) for candidate, verdict in noticed]
                tasks += await _sound(sandbox, made)
                report(min(1.0, max((start + _CHUNK) / len(candidates), len(tasks) / _MAX_TASKS_PER_PACKAGE)))
                if len(tasks) >= _MAX_TASKS_PER_PACKAGE:
                    break
        return tasks[:_MAX_TASKS_PER_PACKAGE]


def _fill(root: Path, work: Path) -> None:
    shutil.copytree(root, work, dirs_exist_ok=True)


def _candidates(root: Path, package: str) -> Iterator[_Candidate]:
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if file.name.startswith("_") and file.name != "__init__.py":
            continue
        source = file.read_text(encoding="utf-8")
        for function in functions_with_examples(source):
            candidates = list(mutants(source, function))
            random.Random(f"{_SEED}/{path}/{function.qualname}").shuffle(candidates)
            if candidates:
                yield _Candidate(package=package, path=path, function=function, mutants=tuple(candidates[:_MUTANTS_PER_FUNCTION]))


def _trial(candidate: _Candidate) -> dict[str, Any]:
    node = candidate.function.node
    return {
        "module": candidate.module,
        "qualname": candidate.function.qualname,
        "docstring": candidate.function.docstring,
        "names": candidate.names,
        "first": node.lineno,
        "last": node.end_lineno,
        "mutants": [[mutant.line, mutant.after] for mutant in candidate.mutants],
    }


async def _printed(sandbox: Sandbox, script: str, request: dict[str, Any]) -> list[Any]:
    """The JSON lines that a script prints; fewer than asked when it was ended."""
    result = await sandbox.run(script_command(script, request))
    lines = [line for line in result.output.split("\n") if line[:1] in {"{", "n", "t", "f"}]
    answers: list[Any] = []
    for line in lines:
        try:
            answers.append(json.loads(line))
        except ValueError:
            break
    return answers


async def _sound(sandbox: Sandbox, tasks: Sequence[RepairTask]) -> list[RepairTask]:
    if not tasks:
        return []
    request = {
        "hidden_tests": script_source("hidden_tests.py"),
        "wall_s": _TEST_WALL_S,
        "tasks": [asdict(task) for task in tasks],
    }
    verdicts = await _printed(sandbox, "verify.py", request)
    return [task for task, good in zip(tasks, verdicts, strict=False) if good]


def _task(candidate: _Candidate, verdict: dict[str, Any], passing: Sequence[_Candidate]) -> RepairTask:
    mutant = candidate.mutants[verdict["mutant"]]
    neighbours = [other.test for other in passing if other.path == candidate.path and other is not candidate]
    return RepairTask(
        key=f"{candidate.module}.{candidate.function.qualname}",
        package=candidate.package,
        path=str(candidate.path),
        line=mutant.line,
        before=mutant.before,
        after=mutant.after,
        issue=_issue(candidate, verdict),
        tests=(candidate.test, *neighbours[-_NEIGHBOURS:]),
    )


def _issue(candidate: _Candidate, verdict: dict[str, Any]) -> str:
    name = f"{candidate.module}.{candidate.function.qualname}"
    want = verdict["want"].strip() or "no output"
    got = verdict["got"].strip() or "no output"
    parts = (f"`{name}` gives wrong results.", "This", verdict["source"].strip(), "should give", want, "but gives", got)
    return "\n\n".join(parts)
