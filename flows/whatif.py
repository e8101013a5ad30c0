"""`libra whatif`: what another cluster, split, router or staleness would make of the same trajectories."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

from flows.console import make_board
from flows.output import json_output
from libra_core.errors import ConfigError
from libra_core.simulation.study.config import StudyConfig, load_study, load_systems
from libra_core.simulation.study.whatif import Curve, Goal, replay, sizes_of
from libra_core.simulation.tables import checked
from libra_core.simulation.workload.laws import WorkloadLaw, load_law

RESULTS = "results.json"


class WhatIfParameters(BaseModel):
    """One question."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Path = Field(description="Folder of a study, or a study's YAML file.")
    gpus: str = "8..256"
    system: str = "libra"
    workload: str = ""
    overrides: list[str] = []
    hours_for_steps: int = Field(default=1000, ge=1)
    target_hours: float | None = Field(default=None, gt=0)
    target_tokens_per_s: float | None = Field(default=None, gt=0)


def run_whatif(parameters: WhatIfParameters, *, as_json: bool) -> None:
    """Raises `LibraError`."""
    study = source_study(parameters)
    law = _law(study, parameters.workload)
    systems = load_systems(study.model_copy(update={"chosen": (parameters.system,)}))
    goal = Goal(tokens_per_s=parameters.target_tokens_per_s, hours=parameters.target_hours, steps=parameters.hours_for_steps)
    sizes = sizes_of(parameters.gpus)
    with json_output(as_json) as emit:
        with make_board(Console(stderr=True)) as board:
            (system,) = systems.items()
            curve = replay(study, system, law, sizes, goal, report=board.phase)
        if not as_json:
            _show(Console(), curve, parameters, law.name)
        emit({"workload": law.name, "system": parameters.system, "study": study.model_dump(mode="json")} | asdict(curve))


def source_study(parameters: WhatIfParameters) -> StudyConfig:
    """The recorded study with the changes asked for. Raises `ConfigError`."""
    if not parameters.source.is_dir():
        return load_study(parameters.source, parameters.overrides)
    path = parameters.source / RESULTS
    try:
        values: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8"))["study"])
    except (OSError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{parameters.source} holds no {RESULTS} of a study; name a folder that `libra compare` wrote, or a study's YAML file"
        ) from None
    from libra_core.config.loading import apply_override

    for override in parameters.overrides:
        apply_override(values, override)
    return checked(values, StudyConfig, str(path))


def _law(study: StudyConfig, name: str) -> WorkloadLaw:
    laws = {law.name: law for law in (load_law(study.path(path)) for path in study.workloads)}
    if name and name not in laws:
        raise ConfigError(f"the study has no workload {name!r}; there are {', '.join(laws)}")
    return laws[name] if name else next(iter(laws.values()))


def _show(console: Console, curve: Curve, parameters: WhatIfParameters, workload: str) -> None:
    table = Table(title=f"{parameters.system} on {workload}", title_justify="left", box=None, padding=(0, 1))
    for column in ("GPUs", "tokens/s", "T_iter s", f"hours for {parameters.hours_for_steps} steps", "GPU hours", "plan"):
        table.add_column(column)
    for point in curve.points:
        rate = point.tokens_per_s
        table.add_row(
            str(point.gpus),
            f"{rate.mean:,.0f} [{rate.low:,.0f}, {rate.high:,.0f}]",
            f"{point.t_iter_s:.1f}",
            f"{point.hours:.1f}",
            f"{point.hours * point.gpus:,.0f}",
            point.plan,
        )
    console.print(table)
    lines = [f"knee         {curve.knee_gpus} GPUs: beyond it a GPU brings less than half of what it can"]
    if curve.too_small:
        lines.append(f"too small    {', '.join(map(str, curve.too_small))} GPUs")
    if parameters.target_hours is not None or parameters.target_tokens_per_s is not None:
        found = f"{curve.cheapest_gpus} GPUs" if curve.cheapest_gpus else "none of these sizes"
        lines.append(f"goal met by  {found}, by the lower end of the interval")
    console.print(*lines, sep="\n", highlight=False, soft_wrap=True)
