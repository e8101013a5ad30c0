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
    return "\n".join([*lines, *sweep_lines(results)])


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


def sweep_lines(results: Mapping[str, Any]) -> list[str]:
    """One row a setting and workload: every system over the baseline, and what planning and routing cost."""
    lines: list[str] = []
    for name, points in results.get("sweeps", {}).items():
        baseline = points[-1]["baseline"]
        systems = [name for name in dict.fromkeys(row["system"] for point in points for row in point["rows"]) if name != baseline]
        heads = (name, "workload", f"{baseline} tokens/s", *systems, "planning CPU s", "routing us")
        lines += ["", f"### {name}: {results['study']['sweeps'][name]['about']}", "", f"| {' | '.join(heads)} |"]
        lines.append(f"|{'---|' * len(heads)}")
        table = [_sweep_cells(point, workload, [baseline, *systems]) for point in points for workload in _workloads(point)]
        lines += [f"| {' | '.join(row)} |" for row in table]
    return lines


def _sweep_cells(point: Mapping[str, Any], workload: str, systems: Sequence[str]) -> list[str]:
    rows = {row["system"]: row for row in point["rows"] if row["workload"] == workload}
    plans = [row["plan_cpu_s"] for row in rows.values()]
    routes = [row["route_us"] for row in rows.values() if row["route_us"] is not None]
    first = rows[point["baseline"]]["tokens_per_s"]["mean"]
    given = "" if point["baseline"] == systems[0] else f" ({point['baseline']})"
    return [
        str(point["label"]),
        workload,
        f"{first:,.0f}{given}",
        *(_ratio(rows[name]["over_baseline"]) if name in rows else "-" for name in systems[1:]),
        f"{max(plans):.2f}",
        f"{max(routes):.0f}" if routes else "-",
    ]


def _ratio(interval: Mapping[str, float]) -> str:
    return f"{interval['mean']:.2f} [{interval['low']:.2f}, {interval['high']:.2f}]"


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
