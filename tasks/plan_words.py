"""A decision of the ledger in words: one line, and a page with both plans side by side."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
"""As `decisions.jsonl` holds it."""


def plan_words(candidate: Row) -> str:
    """`dp 2 (tp 1 pp 1) + 4 x tp1, 1 of 2 hybrids train`."""
    train = candidate["train"]
    engines = " ".join(f"{count} x tp{tp}" for tp, count in candidate["engines"].items())
    words = f"dp {train['dp']} (tp {train['tp']} pp {train['pp']}) + {engines}"
    if candidate["hybrid_replicas"]:
        words += f", {candidate['hybrids_training']} of {candidate['hybrid_replicas']} hybrids train"
    return words


def decision_line(row: Row) -> str:
    """`step 12: switch to dp 2 … (pays): done`."""
    if row["verdict"] != "switch":
        return f"step {row['step']}: {row['verdict']} ({row['reason']})"
    because = f", {row['error']}" if row.get("error") else ""
    return f"step {row['step']}: {row['verdict']} to {plan_words(row['candidate'])} ({row['reason']}): {row['outcome']}{because}"


def decision_markdown(row: Row) -> str:
    """The first line is the decision; the table has both plans."""
    now, then = row["current"], row["candidate"]
    rows = [
        ("plan", plan_words(now), plan_words(then)),
        ("iteration", _seconds(now["t_iter_s"]), _seconds(then["t_iter_s"])),
        ("A: trainer", _seconds(now["terms"]["trainer_s"]), _seconds(then["terms"]["trainer_s"])),
        ("B: fleet", _seconds(now["terms"]["fleet_s"]), _seconds(then["terms"]["fleet_s"])),
        ("C: slowest trajectory", _seconds(now["terms"]["slowest_s"]), _seconds(then["terms"]["slowest_s"])),
        ("D: slowest of a group", _seconds(now["terms"]["group_s"]), _seconds(then["terms"]["group_s"])),
    ]
    table = "\n".join(f"| {name} | {left} | {right} |" for name, left, right in rows)
    return (
        f"**{decision_line(row)}**\n\n"
        f"Term {row['binding']} binds. A gain of {_seconds(row['gain_s_per_step'])} a step saves {_seconds(row['saved_s'])} over "
        f"{row['horizon_steps']} steps; the move costs {_seconds(row['cost_s'])}; "
        f"{error_words(row)}.\n\n"
        f"| | runs now | best move |\n|---|---|---|\n{table}\n\nForecasts rest on: {row['grounding']}.\n"
    )


def error_words(row: Row) -> str:
    """What forecasts of this run were off by, where any was compared."""
    if row.get("error_measured"):
        return f"forecasts of this run are off by {row['forecast_error']:.0%}"
    return f"no forecast of this run has been compared yet, and a gain must exceed {row['forecast_error']:.0%}"


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} s"
