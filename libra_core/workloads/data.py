"""Getting data ready: files are read whole once, refused when wrong, and kept beside a manifest of checksums."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from libra_core.config.models import LibraConfig
from libra_core.config.workload import R2EGymConfig
from libra_core.errors import ConfigError

MANIFEST_FILE: Final = "manifest.json"
Report = Callable[[str, float], None]
"""Told what is being done and the share that is done, 0..1."""


def prepare_embedded(config: LibraConfig, report: Report) -> dict[str, Any]:
    """Make what a workload without files needs; all but r2e_gym need nothing."""
    match config.workload:
        case R2EGymConfig():
            from libra_core.workloads.r2e_gym.preparing import ensure_tasks

            tasks = ensure_tasks(Path(config.workload.prepared), config.workload.sandbox, report)
            packages = sorted({task.package for task in tasks})
            counts = {package: sum(task.package == package for task in tasks) for package in packages}
            return {"workload": "r2e_gym", "folder": config.workload.prepared, "tasks": len(tasks), "packages": counts}
        case _:
            report("nothing to prepare: the workload draws its tasks by seed", 1.0)
            return {"workload": config.workload.kind, "folder": None}


def prepare_missing(config: LibraConfig, report: Report) -> None:
    """What a run would otherwise make in each of its actors at once, without a word: the embedded tasks of r2e_gym."""
    match config.workload:
        case R2EGymConfig(train_files=()):
            prepare_embedded(config, report)
        case _:
            pass


def prepare_files(
    config: LibraConfig, sources: Sequence[Path], corpus: Path | None, folder: Path, report: Report
) -> dict[str, Any]:
    """Copy files that load into `folder`, index the corpus where a run looks for it, and write the manifest.

    Raises:
        ConfigError: for a file that is missing, damaged or of another schema, with the row; nothing is copied then. Also for a
            folder that cannot be written.
    """
    _distinct([*sources, *([corpus] if corpus else [])])
    workload = config.workload.kind
    counts: dict[Path, int] = {}
    for number, source in enumerate(sources):
        report(f"reading {source.name}", number / (len(sources) + 1))
        counts[source] = _rows(workload, source)
    if corpus is not None:
        report(f"indexing {corpus.name}", len(sources) / (len(sources) + 1))
        _index(config, corpus)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {source.name: _kept(source, folder, rows) for source, rows in counts.items()}
        if corpus is not None:
            files[corpus.name] = _kept(corpus, folder, None)
        unfinished = folder / f".{MANIFEST_FILE}.part"
        unfinished.write_text(json.dumps({"workload": workload, "files": files}, indent=1), encoding="utf-8")
        unfinished.replace(folder / MANIFEST_FILE)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error}); --folder names another") from None
    report("data are ready", 1.0)
    return {"workload": workload, "folder": str(folder), "files": files}


def _distinct(files: Sequence[Path]) -> None:
    """All are kept in one folder."""
    by_name: dict[str, Path] = {}
    for file in files:
        if (other := by_name.setdefault(file.name, file)) != file:
            raise ConfigError(f"{other} and {file} have the same name and are kept in one folder; rename one of them")


def _rows(workload: str, source: Path) -> int:
    match workload:
        case "search_r1":
            from libra_core.workloads.search_r1.questions_file import load_questions

            return len(load_questions(source))
        case "dapo_math":
            from libra_core.workloads.dapo_math.problems import load_problems

            return len(load_problems(source))
        case "r2e_gym":
            from libra_core.workloads.r2e_gym.image_instances import load_instances

            return len(load_instances(source))
        case _:
            raise ConfigError(f"workload {workload} reads no files")


def _index(config: LibraConfig, corpus: Path) -> None:
    if config.workload.kind != "search_r1":
        raise ConfigError(f"--corpus belongs to search_r1, not to {config.workload.kind}")
    from libra_core.workloads.search_r1.choose import index_cache
    from libra_core.workloads.search_r1.corpus_index import open_corpus

    open_corpus(corpus, index_cache(config))


def _kept(source: Path, folder: Path, rows: int | None) -> dict[str, Any]:
    target = folder / source.name
    if source.resolve() != target.resolve():
        partial = target.with_name(f".{target.name}.{os.getpid()}.part")
        shutil.copyfile(source, partial)
        partial.replace(target)
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "bytes": target.stat().st_size, "rows": rows}
