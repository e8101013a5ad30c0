"""What `libra verify numerics` prints: every figure beside its bound."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from libra_core.engines.verification import trainer_checks

_ENGINE_CHECKS = "libra_core.engines.verification.engine_checks"
BOUNDS: dict[str, float] = {**trainer_checks.BOUNDS, "engine_vs_trainer_logprob": 5e-5}


def run_numerics(progress: Callable[[str], None]) -> dict[str, Any]:
    """All checks of trainer and engine in float32 on CPU; about a minute and a half on two idle cores for the trainer's part."""
    figures = trainer_checks.trainer_checks(progress)
    if importlib.util.find_spec(_ENGINE_CHECKS) is not None:
        figures |= importlib.import_module(_ENGINE_CHECKS).engine_checks(progress)
    return {**figures, "bounds": BOUNDS, "passed": within_bounds(figures)}


def within_bounds(figures: dict[str, Any]) -> bool:
    """A figure passes when it is at most its bound, a claim when it is true; a nan fails."""
    return all(_passes(value, BOUNDS.get(name)) for name, value in figures.items())


def _passes(value: Any, bound: float | None) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return all(_passes(item, bound) for item in value.values())
    return bound is None or value <= bound
