"""A study for people: one table a workload, and what it cost to simulate."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

_COLUMNS = (
    "system",
    "tokens/s",
    "over baseline",
    "of bound",
    "of oracle",
    "T_iter s",
    "idle",
    "wasted",
    "staleness",
    "moves",
    "first plan",
)


def markdown_table(results: Mapping[str, Any]) -> str:
    """For Prefect and for docs."""
    lines: list[str] = []
    for workload in _workloads(results):
        lines += [f"### {workload}", "", f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
        lines += [f"| {' | '.join(cells(row))} |" for row in results["rows"] if row["workload"] == workload]
        lines.append("")
    return "\n".join(lines)


def comparison_tables(results: Mapping[str, Any]) -> list[Table]:
    """For a terminal."""
    tables: list[Table] = []
    for workload in _workloads(results):
        table = Table(title=workload, title_justify="left", box=None, padding=(0, 1))
        for name in _COLUMNS:
            table.add_column(name, overflow="fold")
        for row in results["rows"]:
            if row["workload"] == workload:
                table.add_row(*cells(row))
        tables.append(table)
    return tables


def cells(row: Mapping[str, Any]) -> list[str]:
    """Of one system on one workload, in the order of the columns."""
    rate, ratio = row["tokens_per_s"], row["over_baseline"]
    return [
        str(row["system"]),
        f"{rate['mean']:,.0f} [{rate['low']:,.0f}, {rate['high']:,.0f}]",
        f"{ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        f"{row['of_bound']:.0%}",
        "-" if row["of_oracle"] is None else f"{row['of_oracle']:.0%}",
        f"{row['t_iter_s']:.1f}",
        f"{row['idle']:.0%}",
        f"{row['wasted']:.1%}",
        f"{row['staleness_mean']:.2f}, at most {row['staleness_max']:.0f}",
        f"{row['transitions']:.1f}",
        str(row["first_plan"]),
    ]


def closing_lines(results: Mapping[str, Any], mlflow_url: str | None, folder: str) -> Sequence[str]:
    """Below the tables."""
    study = results["study"]
    means = {name: value for name, value in results["over_baseline"].items()}
    lines = [f"mean over the workloads, over {study['baseline']} at equal η = {study['staleness']}"]
    lines += [f"  {name:26s} {value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]" for name, value in means.items()]
    speed = f"{results['simulated_tokens_per_cpu_s']:,.0f} tokens and {results['events_per_cpu_s']:,.0f} events per CPU second"
    lines.append(f"simulated in {results['wall_s']:.0f} s ({results['cpu_s']:.0f} CPU s): {speed}")
    lines.append(f"study folder {folder}: results.json, runs.json, figures/")
    return [*lines, *([f"MLflow       {mlflow_url}"] if mlflow_url else [])]


def _workloads(results: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(str(row["workload"]) for row in results["rows"]))
