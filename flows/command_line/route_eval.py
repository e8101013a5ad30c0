"""`libra route-eval`: replay recorded trajectories through routing policies, and show who routes how well."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from libra_core.errors import ConfigError
from libra_core.routing.evaluate.evaluation import COMPARED, DEGREES, EvaluationSettings, PolicyRow, evaluate
from libra_core.routing.evaluate.figures import Figures
from libra_core.routing.evaluate.recorded import RecordedTrajectory, read_prompts, read_recorded
from libra_core.routing.evaluate.verdict import PolicyVerdict, verdicts


def run_route_eval(
    files: Sequence[Path],
    settings: EvaluationSettings,
    *,
    prompts: Path | None = None,
    figure: Path | None = None,
    as_json: bool,
) -> None:
    """Raises `ConfigError` for unreadable files, for a set that is too small, and when the sentence model is not installed."""
    console = terminal(stderr=True)
    with json_output(as_json) as emit:
        sets = _sets(files, {} if prompts is None else read_prompts(prompts))
        if "embedding" in settings.policies:
            from libra_core.engines.sentence_model import sentence_embedder

            settings = replace(settings, embed=sentence_embedder())
        rows: list[PolicyRow] = []
        for name, trajectories in sets.items():
            rows += evaluate(name, trajectories, settings, lambda line: console.print(line, style="dim", highlight=False))
        result = verdicts(rows)
        if not as_json:
            show(terminal(), rows, result)
        if figure is not None:
            from libra_core.tracking.routing_figure import draw_routing

            draw_routing(rows, figure)
        emit({"rows": [asdict(row) for row in rows], "verdicts": [_verdict_json(item) for item in result]})


def settings_of(
    policies: Sequence[str], buckets: str | None, *, epochs: int, shuffles: int, start: str, seed: int
) -> EvaluationSettings:
    """Options as they were typed; raises `ConfigError` that names the wrong one."""
    if unknown := [name for name in policies if name not in COMPARED]:
        raise ConfigError(f"--policy {unknown[0]!r} is unknown; known are {', '.join(COMPARED)}")
    for option, value in (("--epochs", epochs), ("--shuffles", shuffles)):
        if value < 1:
            raise ConfigError(f"{option} is {value}; it must be 1 or more")
    if start not in ("smallest", "predicted"):
        raise ConfigError(f"--start {start!r} is unknown; give smallest or predicted")
    settings = EvaluationSettings(policies=tuple(policies) or COMPARED, epochs=epochs, shuffles=shuffles, start=start, seed=seed)
    return settings if buckets is None else _with_buckets(settings, buckets)


def _with_buckets(settings: EvaluationSettings, buckets: str) -> EvaluationSettings:
    """`P50,P80,P95` are quantiles of the warm-up part, plain numbers are token limits."""
    parts = [part.strip() for part in buckets.split(",")]
    if not 1 <= len(parts) < len(DEGREES):
        raise ConfigError(f"--buckets {buckets!r} names {len(parts)} limits; give 1 to {len(DEGREES) - 1}, such as P50,P80,P95")
    quantiles = [part.upper().startswith("P") for part in parts]
    try:
        numbers = [float(part[1:]) / 100 if quantile else float(part) for part, quantile in zip(parts, quantiles, strict=True)]
    except ValueError:
        raise ConfigError(
            f"--buckets {buckets!r} is no list of limits; give tokens (4000,12000) or quantiles (P50,P80)"
        ) from None
    if not all(map(math.isfinite, numbers)):
        raise ConfigError(f"--buckets {buckets!r}: a limit is a finite number")
    if any(quantiles) != all(quantiles) or numbers != sorted(set(numbers)) or numbers[0] <= 0:
        raise ConfigError(f"--buckets {buckets!r} must be ascending, above 0, and either all tokens or all quantiles")
    degrees = DEGREES[: len(parts) + 1]
    if not all(quantiles):
        return replace(settings, degrees=degrees, limits=tuple(numbers))
    if numbers[-1] >= 1:
        raise ConfigError(f"--buckets {buckets!r}: a quantile lies below P100")
    return replace(settings, degrees=degrees, quantiles=tuple(numbers))


def _sets(files: Sequence[Path], texts: dict[str, str]) -> dict[str, list[RecordedTrajectory]]:
    sets: dict[str, list[RecordedTrajectory]] = {}
    for path in files:
        name = path.name.removesuffix(".gz").removesuffix(".jsonl")
        if name in sets:
            raise ConfigError(f"two files are called {name}; rename one, the name is the data set's in the report")
        sets[name] = read_recorded(path, texts)
    return sets


def _verdict_json(verdict: PolicyVerdict) -> dict[str, Any]:
    facts = ("lower_regret", "within_tolerance", "higher_f1")
    return asdict(verdict) | {name: getattr(verdict, name) for name in facts}


def show(console: Console, rows: Sequence[PolicyRow], verdicts: Sequence[PolicyVerdict]) -> None:
    """A table per data set and order, then the verdicts."""
    for data_set, order in dict.fromkeys((row.data_set, row.order) for row in rows):
        console.print(
            _table(f"{data_set}, {order} order", [row for row in rows if (row.data_set, row.order) == (data_set, order)])
        )
    for item in verdicts:
        change = item.regret_s / item.baseline_regret_s - 1 if item.baseline_regret_s else 0.0
        f1 = (
            ""
            if item.macro_f1 is None
            else f"; macro-F1 {item.macro_f1:.3f} against "
            + ", ".join(f"{name} {value:.3f}" for name, value in item.rivals_f1.items())
        )
        console.print(
            f"{item.data_set}, {item.order}: {item.variant} {item.regret_s:.2f} s regret, "
            f"{change:+.1%} against {item.best_baseline}{f1}",
            highlight=False,
            soft_wrap=True,
        )


def _table(title: str, rows: Sequence[PolicyRow]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    table.add_column("policy")
    columns = ("one-hop", "decisions", "F1", "F1 later", "tail", "migrated", "moves", "regret s", "±", "us")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        figures = row.figures
        table.add_row(row.policy, *_cells(figures, row.later), f"{row.regret_interval_s:.2f}", f"{figures.decision_us:.0f}")
    base = rows[0].figures
    majority = (base.majority_one_hop, base.majority_accuracy, base.majority_f1)
    later = "" if rows[0].later is None else f"{rows[0].later.majority_f1:.3f}"
    table.add_row("majority", *(f"{value:.3f}" for value in majority), later, style="dim")
    return table


def _cells(figures: Figures, later: Figures | None) -> list[str]:
    values = (figures.one_hop_accuracy, figures.decision_accuracy, figures.macro_f1)
    return [
        *(f"{value:.3f}" for value in values),
        "" if later is None else f"{later.macro_f1:.3f}",
        f"{figures.tail_recall:.3f}",
        f"{figures.migrated_share:.1%}",
        f"{figures.moves_per_trajectory:.2f}",
        f"{figures.regret_s:.2f}",
    ]
