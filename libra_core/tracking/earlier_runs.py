"""What earlier runs under a run root know that a new one would have to measure."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from libra_core.config import LibraConfig
from libra_core.errors import LibraError
from libra_core.planning.history_file import read_history
from libra_core.tracking.lengths import FILE_NAME
from libra_core.tracking.run_folder import run_folders
from libra_core.yaml_text import read_mapping

_LIMITS = ("max_turns", "max_new_tokens", "max_context_tokens")


def earlier_lengths(config: LibraConfig) -> Path | None:
    """The length log of the newest run of the same workload, model and limits that has trained a batch; None without one."""
    asked = _what_makes_lengths(config.model_dump(mode="json"))
    batch = config.rollout.groups_per_step * config.rollout.group_size
    for folder in run_folders(Path(config.run.root)):
        log = folder / FILE_NAME
        with suppress(LibraError, KeyError, TypeError):  # damaged, of another version, or just discarded
            ran = read_mapping(folder / "config.yaml", what="configuration", examples="configs/experiment/")
            if _what_makes_lengths(ran) == asked and len(read_history(log)) >= batch:
                return log
    return None


def _what_makes_lengths(values: dict[str, Any]) -> tuple[Any, ...]:
    rollout, simulated = values["rollout"], values["backend"]["kind"] == "simulated"
    limits = tuple(rollout[name] for name in _LIMITS)
    return values["workload"], values["model"], limits, values["simulation"] if simulated else None
