"""`libra decisions`: the ledger of a run as a table or as JSON."""

from pathlib import Path
from typing import Any

from rich.table import Table

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from libra_core.tracking.decisions import count, read_decisions
from libra_core.tracking.run_folder import read_journal
from tasks.plan_words import plan_words


def run_decisions(run_dir: Path, *, as_json: bool) -> None:
    """Raises `CheckpointError` when the folder is not that of a run."""
    read_journal(run_dir)
    rows = read_decisions(run_dir)
    total = count(rows)
    with json_output(as_json) as emit:
        if not as_json:
            console = terminal()
            console.print(ledger_table(rows) if rows else "no plan comparison yet: the run has not replanned")
            console.print(str(total), highlight=False)
        counts = {"rounds": total.rounds, "switches": total.done, "undone": total.undone, "abandoned": total.abandoned}
        emit({"run": str(run_dir), **counts, "under_way": total.under_way, "decisions": rows})


def ledger_table(rows: list[dict[str, Any]]) -> Table:
    """Newest last; `realised` stays empty until enough steps have passed after a switch."""
    table = Table(title="Decisions", title_justify="left")
    for name in ("step", "verdict", "outcome", "reason", "binds", "plan", "candidate"):
        table.add_column(name)
    for name in ("gain s/step", "saved s", "cost s", "realised s/step"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row["step"]),
            row["verdict"],
            row["outcome"],
            row["reason"],
            row["binding"],
            plan_words(row["current"]),
            plan_words(row["candidate"]),
            *(_number(row.get(name)) for name in ("gain_s_per_step", "saved_s", "cost_s", "realised_gain_s_per_step")),
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
