"""A comparison of trainings for people."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

_COLUMNS = ("baseline", "tokens/s", "over {}", "T_iter s", "reward at the end", "s to reward {}", "reward / slot-hour", "plan")


def trainings_table(results: Mapping[str, Any]) -> Table:
    """One row a baseline; means, with least and most where several seeds ran."""
    comparison = results["comparison"]
    target = comparison["reward_target"]
    names = {2: comparison["reference"], 5: "-" if target is None else f"{target:g}"}
    table = Table(title=comparison["name"], title_justify="left", box=None, padding=(0, 1))
    for number, column in enumerate(_COLUMNS):
        table.add_column(column.format(names.get(number, "")), overflow="fold")
    for row in results["rows"]:
        table.add_row(*_cells(row, target is not None))
    return table


def _cells(row: Mapping[str, Any], has_target: bool) -> list[str]:
    return [
        str(row["baseline"]),
        _text(row["tokens_per_s"], ",.0f"),
        _text(row["over_reference"], ".2f"),
        _text(row["t_iter_s"], ".2f"),
        _text(row["reward_last"], ".3f"),
        _time(row) if has_target else "-",
        _text(row["reward_per_gpu_hour"], ".2f"),
        str(row["plan"]),
    ]


def _time(row: Mapping[str, Any]) -> str:
    """`41 s, by 1 of 2 runs`; a run without rewards has none to reach."""
    if not row["finished"] or row["reward_last"] is None:
        return "-"
    if not row["reached"]:
        return "not reached"
    short = "" if row["reached"] == row["finished"] else f", by {row['reached']} of {row['finished']} runs"
    return _text(row["time_to_reward_s"], ".0f") + short


def _text(spread: Mapping[str, float] | None, form: str) -> str:
    if spread is None:
        return "-"
    mean, least, most = (format(spread[key], form) for key in ("mean", "least", "most"))
    return mean if least == most else f"{mean} [{least}, {most}]"


def trainings_lines(results: Mapping[str, Any]) -> list[str]:
    """Below the table: what did not run and why, and where everything lies."""
    lines = [f"{row['baseline']}: {reason}" for row in results["rows"] for reason in row["reasons"]]
    lines.append(f"comparison folder {results['folder']}: results.json, a run folder and a log for each training")
    return [*lines, *([f"MLflow            {results['mlflow_url']}"] if results["mlflow_url"] else [])]
