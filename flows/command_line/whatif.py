"""`libra whatif`: what another cluster, split, router or staleness would make of the same trajectories."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from flows.command_line.whatif_run import RUN_CONFIG, read_run
from flows.views.console import make_board
from libra_core.config.loading import checked, load_config
from libra_core.errors import ConfigError
from libra_core.simulation.study.config import StudyConfig, load_laws, load_study, load_systems
from libra_core.simulation.study.recorded import replay_on
from libra_core.simulation.study.run import layout_text
from libra_core.simulation.study.whatif import Goal, ThroughputCurve, replay, replay_run, sizes_of
from libra_core.simulation.workload.laws import WorkloadLaw

RESULTS = "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The unchanged setting, replayed; seconds."""

    recorded_t_iter_s: float
    replayed_t_iter_s: float

    @property
    def error(self) -> float:
        return self.replayed_t_iter_s / self.recorded_t_iter_s - 1


class WhatIfParameters(BaseModel):
    """One question."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Path = Field(description="Folder of a study or of a training run, or a study's YAML file.")
    gpus: str = "8..256"
    system: str = "libra"
    workload: str = ""
    overrides: list[str] = []
    hours_for_steps: int = Field(default=1000, ge=1)
    target_hours: float | None = Field(default=None, gt=0)
    target_tokens_per_s: float | None = Field(default=None, gt=0)


def run_whatif(parameters: WhatIfParameters, *, as_json: bool) -> None:
    """Raises `LibraError`."""
    goal = Goal(tokens_per_s=parameters.target_tokens_per_s, hours=parameters.target_hours, steps=parameters.hours_for_steps)
    sizes = sizes_of(parameters.gpus)
    ask = _of_run if (parameters.source / RUN_CONFIG).is_file() else _of_study
    with json_output(as_json) as emit:
        with make_board(terminal(stderr=True)) as board:
            curve, check, facts = ask(parameters, sizes, goal, board.phase)
        if not as_json:
            _show(terminal(), curve, parameters, check, facts)
        emit(facts | ({} if check is None else asdict(check) | {"error": check.error}) | asdict(curve))


Answer = tuple[ThroughputCurve, Check | None, dict[str, Any]]
Report = Callable[[str, float], None]


def _of_study(parameters: WhatIfParameters, sizes: Sequence[int], goal: Goal, report: Report) -> Answer:
    study = source_study(parameters)
    law = _law(study, parameters.workload)
    (system,) = load_systems(study.model_copy(update={"chosen": (parameters.system,)})).items()
    curve = replay(study, system, law, sizes, goal, report=report)
    facts = {"workload": law.name, "system": parameters.system, "study": study.model_dump(mode="json")}
    return curve, _recorded_in_study(parameters, study, law.name, curve), facts


def _recorded_in_study(parameters: WhatIfParameters, study: StudyConfig, workload: str, curve: ThroughputCurve) -> Check | None:
    """When the study's own setting is among those that were asked about."""
    if not parameters.source.is_dir() or parameters.overrides:
        return None
    path = parameters.source / RESULTS
    try:
        rows = json.loads(path.read_text(encoding="utf-8")).get("rows", [])
        recorded = [float(row["t_iter_s"]) for row in rows if (row["workload"], row["system"]) == (workload, parameters.system)]
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"{path} is damaged; run the study again with `libra compare`") from None
    replayed = [point.t_iter_s for point in curve.points if point.gpus == study.gpus]
    return Check(recorded_t_iter_s=recorded[0], replayed_t_iter_s=replayed[0]) if recorded and replayed else None


def _of_run(parameters: WhatIfParameters, sizes: Sequence[int], goal: Goal, report: Report) -> Answer:
    """Raises `ConfigError` for a run without a length log."""
    if parameters.workload:
        raise ConfigError(f"--workload {parameters.workload}: a run replays its own trajectories; leave it out")
    folder = parameters.source
    run, after = read_run(folder), load_config(folder / RUN_CONFIG, parameters.overrides)
    replayed = replay_on(run, run.plan).summary(run.plan.num_gpus).t_iter_s
    check = Check(recorded_t_iter_s=run.t_iter_s, replayed_t_iter_s=replayed)
    facts = {"run": str(folder), "plan": layout_text(run.plan), "laws": list(run.laws), "overrides": parameters.overrides}
    return replay_run(run, after, sizes, goal, report), check, facts


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
        apply_override(values, override, StudyConfig)
    return checked(values, StudyConfig, str(path))


def _law(study: StudyConfig, name: str) -> WorkloadLaw:
    laws = load_laws(study)
    if name and name not in laws:
        raise ConfigError(f"the study has no workload {name!r}; there are {', '.join(laws)}")
    return laws[name] if name else next(iter(laws.values()))


def _show(
    console: Console, curve: ThroughputCurve, parameters: WhatIfParameters, check: Check | None, facts: dict[str, Any]
) -> None:
    title = f"{facts['system']} on {facts['workload']}" if "system" in facts else f"{facts['run']}, recorded on {facts['plan']}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
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
    if check is not None:
        replayed, recorded = f"{check.replayed_t_iter_s:.2f} s replayed", f"{check.recorded_t_iter_s:.2f} s recorded"
        lines.append(f"unchanged    T_iter {replayed}, {recorded}: {check.error:+.1%}")
    lines += [f"law          {law}" for law in facts.get("laws", [])]
    if curve.too_small:
        lines.append(f"too small    {', '.join(map(str, curve.too_small))} GPUs")
    if parameters.target_hours is not None or parameters.target_tokens_per_s is not None:
        cheapest = f"{curve.cheapest_gpus} GPUs" if curve.cheapest_gpus else "none of these sizes"
        lines.append(f"goal met by  {cheapest}, by the lower end of the interval")
    console.print(*lines, sep="\n", highlight=False, soft_wrap=True)
