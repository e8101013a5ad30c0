"""The run folder: resolved config, journal, metrics, trace. The journal tells a later process where the run stands."""

import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from libra_core.config import LibraConfig, resolved_yaml
from libra_core.errors import CheckpointError
from libra_core.types.session import SessionRef

_JOURNAL = "journal.json"
_FLOW_RUNS = ".flow-runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Where a run stands after its last finished iteration."""

    next_step: int = 0
    policy_version: int = 0
    wall_s: float = 0.0
    """Time spent training, over all processes that worked on the run."""
    generated_tokens: int = 0
    mlflow_run_id: str | None = None
    mlflow_uri: str | None = None
    session: SessionRef | None = None
    """Set while actors may be alive."""


def make_run_folder(config: LibraConfig) -> Path:
    """`<root>/<name>-<timestamp>-s<seed>` with `config.yaml` and an empty journal, or the folder that is resumed.

    Raises:
        CheckpointError: when the folder to resume holds no journal.
    """
    if config.run.resume is not None:
        run_dir = Path(config.run.resume).resolve()
        read_journal(run_dir)
        (run_dir / "config.resumed.yaml").write_text(resolved_yaml(config), encoding="utf-8")
        return run_dir
    run_dir = _fresh_folder(Path(config.run.root).resolve(), f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}-s{config.seed}")
    (run_dir / "config.yaml").write_text(resolved_yaml(config), encoding="utf-8")
    write_journal(run_dir, Journal())
    return run_dir


def discard_run_folder(run_dir: Path) -> None:
    """Remove the folder of a run that never finished an iteration."""
    if read_journal(run_dir).next_step == 0:
        shutil.rmtree(run_dir, ignore_errors=True)


def read_journal(run_dir: Path) -> Journal:
    """Raises `CheckpointError` when there is none or when it is damaged."""
    path = run_dir / _JOURNAL
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        session = values.pop("session", None)
        return Journal(**values, session=SessionRef(**session) if session else None)
    except FileNotFoundError:
        raise CheckpointError(f"{run_dir} is not a run folder: it holds no {_JOURNAL}; name a folder under run.root") from None
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); start a new run or restore the file") from None


def write_journal(run_dir: Path, journal: Journal) -> None:
    write_atomically(run_dir / _JOURNAL, json.dumps(asdict(journal), indent=2))


def update_journal(run_dir: Path, **changes: Any) -> Journal:
    journal = replace(read_journal(run_dir), **changes)
    write_journal(run_dir, journal)
    return journal


def write_atomically(path: Path, text: str) -> None:
    """A reader, also one after a crash, sees the old text or all of the text, never a part."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def remember_flow_run(root: Path, flow_run_id: str, run_dir: Path) -> None:
    """Let a hook in another process find the run folder of a Prefect flow run."""
    folder = root / _FLOW_RUNS
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / flow_run_id, str(run_dir))


def find_run(root: Path, flow_run_id: str) -> Path | None:
    """The run folder of a flow run, or None when the flow ended before it had one."""
    path = root / _FLOW_RUNS / flow_run_id
    if not path.exists():
        return None
    run_dir = Path(path.read_text(encoding="utf-8"))
    return run_dir if run_dir.exists() else None


def _fresh_folder(root: Path, name: str) -> Path:
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
