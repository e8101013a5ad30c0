"""`plan.json` and `plan.yaml` of a run folder: the plan that a run chose or was given, and how its forecast came out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from libra_core.errors import CheckpointError, on_the_disk
from libra_core.tracking.run_folder import write_atomically

RECORD_NAME = "plan.json"
PLAN_NAME = "plan.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """What is kept of a plan: `values` of plan.json, and the text of plan.yaml."""

    values: Mapping[str, Any]
    text: str


def keep_plan(run_dir: Path, record: PlanRecord) -> None:
    """Into the run folder; of a resumed run in place of what was there."""
    with on_the_disk(run_dir):
        write_atomically(run_dir / RECORD_NAME, json.dumps(record.values, indent=2))
        write_atomically(run_dir / PLAN_NAME, record.text)


def plan_outcome(run_dir: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Forecast and measured T_iter and their ratio; empty for a run that was not planned.

    Measured where a forecast of the steady state may be: without the first η + 1 iterations, in which the fleet is filled, and
    the last η, in which it runs empty, where any are left.

    Raises:
        CheckpointError: the record was damaged from outside.
    """
    path = run_dir / RECORD_NAME
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_bytes())
        asked, forecast_s, staleness = values["asked"], values["chosen"]["forecast"]["t_iter_s"], int(values["staleness"])
        forecast_s = float(forecast_s)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it, and the run goes on without its forecast") from None
    steady = rows[staleness + 1 : len(rows) - staleness] or rows
    measured_s = fmean(float(row["iteration/t_iter_s"]) for row in steady)
    return {
        "asked": asked,
        "t_iter_forecast_s": forecast_s,
        "t_iter_measured_s": measured_s,
        "t_iter_ratio": forecast_s / measured_s if measured_s else None,
        "measured_steps": len(steady),
    }
