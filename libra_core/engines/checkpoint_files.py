"""Which checkpoints of a run are whole. The marker, written last, vouches for every file by its size and checksum. No torch."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from libra_core.engines.model_folder import DecoderShape
from libra_core.errors import CheckpointError

MARKER = "COMPLETE.json"
PROGRESS = "progress.json"
RNG = "rng.safetensors"
FOLDER = "checkpoints"
"""In a run folder."""
PARTIAL = ".partial"
"""What a folder is called while it is written, after its own name."""
_NAME = re.compile(r"step-(\d+)")
_REMEDY = "resume from another checkpoint of the run"
_READERS = 8
"""Files that are read at once; hashing releases the interpreter."""


def complete_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints whose save was finished, oldest first. Saves that were cut off, and whatever else lies there, do not count."""
    numbered = [(int(name[1]), path) for path in folder.glob("step-*") if (name := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered) if (path / MARKER).is_file()]


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` complete checkpoints, and saves that were cut off. Not while one is being written."""
    for partial in folder.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(partial, ignore_errors=True)
    for old in complete_checkpoints(folder)[:-keep]:
        _remove(old)


def set_aside_newer(checkpoint: Path) -> list[Path]:
    """The run goes on from here: what was saved later is of another past, and would else be taken for the newest one.

    It keeps its files under `<name>.set-aside`, which no resume finds by itself and no pruning removes.
    """
    every = complete_checkpoints(checkpoint.parent)
    later = every[every.index(checkpoint) + 1 :] if checkpoint in every else []
    return [path.rename(_free_name(path)) for path in later]


def chosen_checkpoint(run_dir: Path, named: Path | None, say: Callable[[str], None]) -> Path:
    """The checkpoint to go on from: the one that is named, or the newest whole one; `say` hears of those that are not whole.

    Raises:
        CheckpointError: there is none, or the one that is named is not whole.
    """
    if not run_dir.is_dir():
        raise CheckpointError(f"no run folder at {run_dir} to resume; name one of the folders under run.root")
    complete = complete_checkpoints(run_dir / FOLDER)
    if named is not None:
        if wrong := damage_of(named):
            others = [path.name for path in complete if path != named and damage_of(path) is None]
            raise CheckpointError(f"{wrong}; whole ones: {', '.join(others) or 'none'}")
        return named
    if not complete:
        cut_off = f", only a save that was cut off ({cut[-1].name})" if (cut := _cut_off(run_dir / FOLDER)) else ""
        raise CheckpointError(
            f"{run_dir} holds no checkpoint yet{cut_off} (one is written every training.checkpoint.every_steps); "
            "start the run anew"
        )
    damaged: list[str] = []
    for checkpoint in reversed(complete):
        wrong = damage_of(checkpoint)
        if wrong is None:
            if damaged:
                say(f"{'; '.join(damaged)}; the run goes on from {checkpoint.name}")
            return checkpoint
        damaged.append(wrong.removesuffix(f"; {_REMEDY}"))
    raise CheckpointError(f"no checkpoint of {run_dir} is whole: {'; '.join(damaged)}; start the run anew")


def damage_of(folder: Path) -> str | None:
    """Why the files of this checkpoint cannot be trusted, or None. Reads all of them."""
    listing = _listing_in(folder)
    if isinstance(listing, str):
        return f"{listing}; {_REMEDY}"
    sizes = [_wrong_size(folder, name, expected) for name, expected in listing.items()]
    if wrong := next(filter(None, sizes), None):
        return f"{folder} is damaged: {wrong}; {_REMEDY}"
    with ThreadPoolExecutor(_READERS) as readers:
        digests = readers.map(lambda name: _digest(folder / name), listing)
        for (name, expected), digest in zip(listing.items(), digests, strict=True):
            if digest != expected["sha256"]:
                return f"{folder} is damaged: the checksum of {name} does not match; {_REMEDY}"
    return _of_another_step(folder)


def foreign_model(folder: Path, model: DecoderShape) -> str | None:
    """Why this whole checkpoint is not one of this model, or None."""
    facts = asdict(model)
    saved = json.loads((folder / PROGRESS).read_text())["model"]
    wrong = sorted(key for key in facts if facts[key] != saved.get(key))
    if not wrong:
        return None
    key = wrong[0]
    return f"{folder} holds a model with {key} {saved.get(key)}, but the run trains {facts[key]}; set model.path to that model"


def write_marker(folder: Path) -> None:
    """Vouch for all files that are there."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != MARKER)
    listing = {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": _digest(file)} for file in files}
    (folder / MARKER).write_text(json.dumps(listing))


def put_in_place(partial: Path, folder: Path) -> None:
    """Give a finished save its name. One that had the name goes only afterwards: a crash in between leaves both."""
    old = _free_name(folder) if folder.exists() else None
    if old is not None:
        folder.rename(old)
    partial.rename(folder)
    if old is not None:
        _remove(old)


def _remove(folder: Path) -> None:
    """Of a link to a folder elsewhere, such as a larger disk, the link; what cannot be removed stays."""
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _of_another_step(folder: Path) -> str | None:
    """Why the name of a checkpoint is not that of what it holds, or None: the newest is chosen by its name."""
    name = _NAME.fullmatch(folder.name)
    saved = json.loads((folder / PROGRESS).read_bytes()).get("progress", {})
    if name is None or saved.get("version", int(name[1])) == int(name[1]):
        return None
    return f"{folder} holds the weights after step {saved['version']}, so it was renamed or copied; give it its own name again"


def _listing_in(folder: Path) -> dict[str, dict[str, Any]] | str:
    """What the marker vouches for, or what is wrong with it."""
    try:
        listing = json.loads((folder / MARKER).read_bytes())
    except OSError:
        return f"{folder} is not a complete checkpoint ({MARKER} is missing)"
    except ValueError:
        return f"{folder}/{MARKER} is damaged"
    is_listing = isinstance(listing, dict) and all(
        isinstance(entry, dict) and {"bytes", "sha256"} <= entry.keys() for entry in listing.values()
    )
    if not is_listing or not {PROGRESS, RNG} <= listing.keys():
        return f"{folder}/{MARKER} is damaged"
    return listing


def _wrong_size(folder: Path, name: str, expected: dict[str, Any]) -> str | None:
    file = folder / name
    if not file.is_file():
        return f"{name} is missing"
    size = file.stat().st_size
    return None if size == expected["bytes"] else f"{name} has {size} bytes instead of {expected['bytes']}"


def _digest(file: Path) -> str:
    """Of a file that cannot be read: none."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def _cut_off(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"step-*{PARTIAL}"))


def _free_name(path: Path) -> Path:
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.set-aside{'' if number == 1 else f'-{number}'}")
        if not aside.exists():
            return aside
    raise CheckpointError(f"{path.parent} holds 999 checkpoints of step {path.name} that were set aside; remove some")
