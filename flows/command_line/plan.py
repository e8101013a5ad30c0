"""`libra plan`: load, solve, show, and write what a run can start with. Imports neither Ray nor torch."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from flows.planned import PlanRequest, candidate_json, named_layout, plan_json, plan_request
from flows.views.plan_view import explanation, forecast_table, named_line, node_map, runner_up_table, verdict_lines
from libra_core.config import load_config
from libra_core.errors import ConfigError, on_the_disk
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.loading import LoadedProblem
from libra_core.planning.named_layout import forecast_named
from libra_core.planning.plan_file import made_for, plan_text
from libra_core.tracking.run_folder import write_atomically
from libra_core.types.forecast import PlanReport


def run_plan(
    config_path: Path,
    overrides: list[str],
    *,
    history: Path | None = None,
    layout: Sequence[str] = (),
    write: Path | None = None,
    as_json: bool = False,
    explain: bool = False,
) -> None:
    """Raises `LibraError` when the configuration is wrong or nothing is feasible."""
    request = plan_request(load_config(config_path, overrides), history)
    loaded = request.loaded
    named = forecast_named(loaded.problem, named_layout(request.config, layout)) if layout else None
    started = time.perf_counter()
    report = plan_resources(loaded.problem)
    solve_s = time.perf_counter() - started
    if write is not None:
        _write(write, report, request, config_path)
    with json_output(as_json) as emit:
        if not as_json:
            _show(terminal(), report, loaded, solve_s, explain=explain)
            lines = [named_line(named, report.best)] if named else []
            lines += [f"written to   {write}"] if write else []
            terminal().print(*lines, sep="\n", end="\n" if lines else "", highlight=False, soft_wrap=True)
        extra = {"layout": candidate_json(named)} if named else {}
        emit(plan_json(report, loaded, solve_s) | extra | ({"written": str(write)} if write else {}))


def _write(path: Path, report: PlanReport, request: PlanRequest, config_path: Path) -> None:
    if report.against:
        raise ConfigError(f"nothing is written to {path}, since no run could start with it: {'; '.join(report.against)}")
    text = plan_text(report.best, request.loaded, made_for(request.config, request.loaded), str(config_path))
    with on_the_disk(path):
        write_atomically(path, text)


def _show(console: Console, report: PlanReport, loaded: LoadedProblem, solve_s: float, *, explain: bool) -> None:
    console.print(forecast_table(report, loaded))
    console.print(node_map(report, loaded.problem.cluster))
    console.print(runner_up_table(report))
    lines = verdict_lines(report, loaded, solve_s)
    console.print(*lines, sep="\n", highlight=False, soft_wrap=True)
    if explain:
        console.print(*explanation(report), sep="\n", highlight=False, soft_wrap=True)
