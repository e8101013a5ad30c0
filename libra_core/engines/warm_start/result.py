"""What a warm start leaves beside its weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from libra_core.engines.model_folder import read_model_facts, weight_files
from libra_core.errors import ModelFolderError

FACTS_FILE: Final = "warm_start.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartResult:
    """A policy ready to be trained, with its success rates at temperature 1 (0..1)."""

    folder: Path
    skill_success: float
    """After the correct demonstrations alone: about what reinforcement can bring back at once."""
    base_success: float
    """Of the policy in the folder, on questions about training countries."""
    heldout_success: float | None
    """Of the policy in the folder, on countries whose facts no demonstration held; None when none are held out.

    Their names do occur in demonstrations, joined at random with others.
    """
    cached: bool
    """False when this call made it."""
    seconds: float
    """Of this call: a cached policy takes milliseconds."""


def write_facts(folder: Path, *, skill_success: float, base_success: float, heldout_success: float | None) -> None:
    facts = {"skill_success": skill_success, "base_success": base_success, "heldout_success": heldout_success}
    (folder / FACTS_FILE).write_text(json.dumps(facts, indent=2), encoding="utf-8")


def is_whole(folder: Path) -> bool:
    """Whether a policy can be read from the folder; one that a full or broken disk damaged is made anew."""
    try:
        read_result(folder, cached=True, seconds=0.0)
        weight_files(folder)
        read_model_facts(folder)
    except (OSError, ValueError, KeyError, TypeError, ModelFolderError):
        return False
    return True


def read_result(folder: Path, *, cached: bool, seconds: float) -> WarmStartResult:
    facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
    return WarmStartResult(
        folder=folder,
        skill_success=facts["skill_success"],
        base_success=facts["base_success"],
        heldout_success=facts["heldout_success"],
        cached=cached,
        seconds=seconds,
    )
