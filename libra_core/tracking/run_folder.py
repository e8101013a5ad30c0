"""The run folder: resolved config, journal, metrics, trace. The journal tells a later process where the run stands."""

import json
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from libra_core.config import LibraConfig, resolved_yaml
from libra_core.errors import CheckpointError, on_the_disk
from libra_core.types.session import SessionRef

_JOURNAL = "journal.json"
_FLOW_RUNS = ".flow-runs"


Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Where a run stands after its last finished iteration."""

    next_step: Count = 0
    policy_version: Count = 0
    wall_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Time spent training, over all processes that worked on the run."""
    generated_tokens: Count = 0
    mlflow_run_id: str | None = None
    mlflow_uri: str | None = None
    session: SessionRef | None = None
    """Set while actors may be alive."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


_JOURNALS = TypeAdapter(Journal)


def make_run_folder(config: LibraConfig) -> Path:
    """`<root>/<name>-<timestamp>-s<seed>` with `config.yaml` and an empty journal, or the folder that is resumed.

    Raises:
        CheckpointError: when the folder to resume holds no journal.
        ResourceError: when it cannot be written.
    """
    resumed = config.run.resumed_folder
    if resumed is not None:
        read_journal(resumed)
        with on_the_disk(resumed):
            write_atomically(resumed / "config.resumed.yaml", resolved_yaml(config))
        return resumed
    root = Path(config.run.root).resolve()
    with on_the_disk(root, "choose another run.root"):
        run_dir = fresh_folder(root, f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}-s{config.seed}")
        try:
            write_atomically(run_dir / "config.yaml", resolved_yaml(config))
            write_journal(run_dir, Journal())
        except OSError:
            shutil.rmtree(run_dir, ignore_errors=True)
            raise
    return run_dir


def discard_run_folder(run_dir: Path) -> None:
    """Remove the folder of a run that never finished an iteration."""
    if read_journal(run_dir).next_step == 0:
        shutil.rmtree(run_dir, ignore_errors=True)


def run_folders(root: Path) -> list[Path]:
    """Every run folder under `root`, the one that was written last first."""
    written: list[tuple[float, Path]] = []
    for journal in root.glob(f"*/{_JOURNAL}"):
        with suppress(OSError):  # another process has just discarded it
            written.append((journal.stat().st_mtime, journal.parent))
    return [folder for _, folder in sorted(written, reverse=True)]


def read_journal(run_dir: Path) -> Journal:
    """Raises `CheckpointError` when there is none or when it is damaged."""
    path = run_dir / _JOURNAL
    try:
        return _JOURNALS.validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{run_dir} is not a run folder: it holds no {_JOURNAL}; name a folder under run.root") from None
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(str(part) for part in detail["loc"])
        what = f"{where}: {detail['msg']}" if where else detail["msg"]
        raise CheckpointError(f"{path} is damaged ({what}); start a new run or restore the file") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); start a new run or restore the file") from None


def write_journal(run_dir: Path, journal: Journal) -> None:
    """Raises `ResourceError` when the disk refuses."""
    with on_the_disk(run_dir / _JOURNAL):
        write_atomically(run_dir / _JOURNAL, json.dumps(asdict(journal), indent=2))


def update_journal(run_dir: Path, **changes: Any) -> Journal:
    journal = replace(read_journal(run_dir), **changes)
    write_journal(run_dir, journal)
    return journal


def note_session(run_dir: Path, session: SessionRef) -> None:
    """Before anything starts, so that whoever resumes knows what a killed start left. A session without a run has no journal."""
    if (run_dir / _JOURNAL).exists():
        update_journal(run_dir, session=session)


def write_atomically(path: Path, text: str) -> None:
    """A reader, also one after a crash, sees the old text or all of the text, never a part."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)


def remember_flow_run(root: Path, flow_run_id: str, run_dir: Path) -> None:
    """Let a hook in another process find the run folder of a Prefect flow run."""
    folder = root / _FLOW_RUNS
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / flow_run_id, str(run_dir))


def find_run(root: Path, flow_run_id: str) -> Path | None:
    """The run folder of a flow run, or None when the flow ended before it had one."""
    try:
        run_dir = Path((root / _FLOW_RUNS / flow_run_id).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return run_dir if run_dir.is_dir() else None


def fresh_folder(root: Path, name: str) -> Path:
    """Two runs that start within one second get different folders."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100):
        folder = root / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise CheckpointError(f"{root / name} and 98 numbered folders beside it exist; choose another run.name")
