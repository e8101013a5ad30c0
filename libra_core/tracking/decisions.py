"""`decisions.jsonl`: every replanning round, and what applied decisions brought. Only ever appended to.

A line is a decision, or the outcome or the realised gain of one, under the step of the decision; reading joins them. Every row
has one outcome, and `count` is the one count of them for commands, pages and MLflow.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from libra_core.tracking.jsonl import append_line, rows_of_steps
from libra_core.tracking.run_folder import write_atomically
from libra_core.types.decision import Decision, Outcome, Realised, ResolvedDecision, Verdict
from libra_core.types.forecast import Candidate
from libra_core.types.profile import RunProfile

FILE_NAME = "decisions.jsonl"
_COMPARED = {"verdict", "reason", "binding", "gain_s_per_step", "saved_s", "cost_s", "current", "candidate"}
"""What tables and tags of the ledger need; a damaged decision is left out."""
_RUN_ENDED = "the run ended while the move was under way"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCount:
    """Looks at the plan, and what became of those that decided to move."""

    rounds: int
    done: int
    undone: int
    abandoned: int
    under_way: int

    def __str__(self) -> str:
        moves = {"done": self.done, "undone": self.undone, "abandoned": self.abandoned, "under way": self.under_way}
        return f"{self.rounds} rounds, switches: " + ", ".join(
            f"{number} {name}" for name, number in moves.items() if number or name == "done"
        )


def count(rows: Sequence[Mapping[str, Any]]) -> LedgerCount:
    """Of `read_decisions`."""
    counts = Counter(row["outcome"] for row in rows)
    return LedgerCount(
        rounds=len(rows),
        done=counts[Outcome.DONE],
        undone=counts[Outcome.UNDONE],
        abandoned=counts[Outcome.ABANDONED],
        under_way=counts[Outcome.UNDER_WAY],
    )


def append_decision(run_dir: Path, decision: Decision, profile: RunProfile | None = None) -> None:
    """With the measurements that it rests on, where there are any."""
    measured = {} if profile is None else {"profile": asdict(profile)}
    _append(run_dir, {"kind": "decision", **decision_row(decision), **measured})


def append_outcome(
    run_dir: Path, step: int, outcome: Outcome, *, seconds: Mapping[str, float] | None = None, error: str = ""
) -> None:
    """What became of the move that the decision of `step` asked for; seconds by action."""
    row = {"kind": "outcome", "step": step, "outcome": outcome.value, "error": error, "action_s": dict(seconds or {})}
    _append(run_dir, row)


def append_realised(run_dir: Path, realised: Realised) -> None:
    _append(
        run_dir,
        {
            "kind": "realised",
            "step": realised.step,
            "realised_gain_s_per_step": realised.gain_s_per_step,
            "realised_t_iter_s": realised.t_iter_s,
            "realised_cost_s": realised.cost_s,
        },
    )


def append_resolved(run_dir: Path, resolved: ResolvedDecision) -> None:
    """What is now known of an earlier decision."""
    if resolved.outcome is not None:
        became = resolved.outcome
        error = "; ".join(text for text in (became.error, *became.not_undone) if text)
        outcome = Outcome.DONE if became.applied else Outcome.UNDONE
        append_outcome(run_dir, resolved.step, outcome, seconds=dict(became.seconds), error=error)
    if resolved.abandoned:
        append_outcome(run_dir, resolved.step, Outcome.ABANDONED, error=_RUN_ENDED)
    if resolved.realised is not None:
        append_realised(run_dir, resolved.realised)


def abandon_open(run_dir: Path) -> list[int]:
    """The run is over: moves that were under way get their outcome. Steps of their decisions."""
    steps = [int(row["step"]) for row in read_decisions(run_dir) if row["outcome"] == Outcome.UNDER_WAY]
    for step in steps:
        append_outcome(run_dir, step, Outcome.ABANDONED, error=_RUN_ENDED)
    return steps


def read_decisions(run_dir: Path) -> list[dict[str, Any]]:
    """One row per round, in step order, with its outcome, and its realised gain where there is one; a line cut by a crash is left
    out."""
    rows: dict[int, dict[str, Any]] = {}
    for line in rows_of_steps(run_dir / FILE_NAME):
        kind, step = line.pop("kind", None), line["step"]
        if kind == "decision" and line.keys() >= _COMPARED:
            rows[step] = {"outcome": _at_first(line["verdict"]), **line}
        elif step in rows:
            rows[step] |= line
    return [rows[step] for step in sorted(rows)]


def drop_decisions_from(run_dir: Path, step: int) -> None:
    """Forget rounds of iterations that a resumed run does again."""
    path = run_dir / FILE_NAME
    if path.exists():
        kept = [line for line in rows_of_steps(path) if line["step"] < step]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))


def decision_row(decision: Decision) -> dict[str, Any]:
    """Plain values: both plans, both forecasts by term, and every number that the rule compared."""
    return {
        "step": decision.step,
        "verdict": decision.verdict.value,
        "outcome": _at_first(decision.verdict),
        "reason": decision.reason.value,
        "tier": decision.tier.value if decision.tier else None,
        "binding": decision.binding.value,
        "gain_s_per_step": decision.gain_s_per_step,
        "saved_s": decision.saved_s,
        "cost_s": decision.cost.total_s,
        "cost_parts_s": asdict(decision.cost),
        "horizon_steps": decision.horizon_steps,
        "forecast_error": decision.forecast_error,
        "error_measured": decision.error_measured,
        "grounding": decision.grounding,
        "current": _candidate_row(decision.current),
        "candidate": _candidate_row(decision.candidate),
    }


def _at_first(verdict: str) -> str:
    return (Outcome.UNDER_WAY if verdict == Verdict.SWITCH else Outcome.KEPT).value


def _candidate_row(candidate: Candidate) -> dict[str, Any]:
    plan = candidate.plan
    return {
        "train": asdict(plan.train),
        "engines": {str(tp): count for tp, count in plan.rollout.engines},
        "hybrid_replicas": plan.hybrid_replicas,
        "hybrids_training": plan.hybrids_training,
        "num_gpus": plan.num_gpus,
        "mode": candidate.mode.value,
        "streamed": candidate.streamed,
        "t_iter_s": candidate.forecast.t_iter_s,
        "terms": asdict(candidate.forecast.terms),
    }


def _append(run_dir: Path, row: Mapping[str, Any]) -> None:
    append_line(run_dir / FILE_NAME, _finite(row))


def _finite(value: Any) -> Any:
    """JSON has no nan: a number that is not known is null."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in cast("Mapping[str, Any]", value).items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
