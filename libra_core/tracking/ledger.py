"""Decisions about the plan as metrics, tags and one table: the ledger for those who read MLflow."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from libra_core.tracking.decisions import count
from libra_core.types.decision import Decision, Outcome, ResolvedDecision, Verdict
from libra_core.types.profile import RunProfile

PLAN_METRICS: Mapping[str, str] = {
    "plan/switch": "1 when a round changed the plan, logged once the move has ended, else 0; the sum is the tag plan.switches",
    "plan/gain_s_per_step": "forecast iteration time of the plan that runs less that of the best move",
    "plan/saved_s": "that gain over the horizon",
    "plan/cost_s": "what the move is expected to cost",
    "plan/forecast_error_fraction": "relative error of the run's forecasts of its iteration time, from the first comparison on",
    "plan/t_iter_current_s": "forecast of the plan that runs",
    "plan/t_iter_candidate_s": "forecast of the move",
    "plan/hybrids_training": "hybrid replicas that trained in the round",
    "plan/train_s_per_token": "measured: forward and backward of one replica per token of the batch",
    "plan/between_s": "measured: from the end of an update until the trainer can take groups again",
    "plan/decode_ratio": "measured: engines' decode time over what their law says",
    "plan/prefill_ratio": "measured: the same of prompts and tool returns",
    "plan/realised_gain_s_per_step": "mean iteration time before a switch less that after it, the workload's drift included",
    "plan/realised_cost_s": "measured time of the transition's actions",
}
"""Under the step of the round."""


def decision_metrics(decision: Decision, profile: RunProfile) -> dict[str, float]:
    """Those that are finite."""
    return _finite(
        {
            "plan/switch": math.nan if decision.verdict is Verdict.SWITCH else 0.0,
            "plan/gain_s_per_step": decision.gain_s_per_step,
            "plan/saved_s": decision.saved_s,
            "plan/cost_s": decision.cost.total_s,
            "plan/forecast_error_fraction": decision.forecast_error if decision.error_measured else math.nan,
            "plan/t_iter_current_s": decision.current.forecast.t_iter_s,
            "plan/t_iter_candidate_s": decision.candidate.forecast.t_iter_s,
            "plan/hybrids_training": float(decision.current.plan.hybrids_training),
            "plan/train_s_per_token": profile.train_s_per_token,
            "plan/between_s": profile.between_s,
            "plan/decode_ratio": profile.decode_ratio,
            "plan/prefill_ratio": profile.prefill_ratio,
        }
    )


def resolved_metrics(resolved: ResolvedDecision) -> dict[str, float]:
    if resolved.outcome is not None or resolved.abandoned:
        return {"plan/switch": float(resolved.outcome is not None and resolved.outcome.applied)}
    if resolved.realised is None:
        return {}
    realised = resolved.realised
    return _finite({"plan/realised_gain_s_per_step": realised.gain_s_per_step, "plan/realised_cost_s": realised.cost_s})


def ledger_tags(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """None for a run without rounds."""
    if not rows:
        return {}
    counted = count(rows)
    reasons = Counter(str(row["reason"]) for row in rows)
    return {
        "plan.rounds": str(len(rows)),
        "plan.switches": str(counted.done),
        "plan.undone": str(counted.undone),
        "plan.abandoned": str(counted.abandoned),
        "plan.reasons": ", ".join(f"{reason}: {count}" for reason, count in reasons.most_common()),
    }


def ledger_summary(rows: Sequence[Mapping[str, Any]], replanning_s: float, wall_s: float) -> dict[str, Any]:
    """For the JSON of a run; empty without rounds."""
    if not rows:
        return {}
    reasons = Counter(str(row["reason"]) for row in rows)
    return {
        "rounds": len(rows),
        "replanning_s": round(replanning_s, 3),
        "share_of_run": round(replanning_s / wall_s, 5) if wall_s else None,
        "reasons": dict(reasons),
        "switches": [_switch(row) for row in rows if row["outcome"] == Outcome.DONE],
        "not_made": [_switch(row) for row in rows if row["outcome"] not in (Outcome.DONE, Outcome.KEPT)],
    }


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Nested parts as `current.t_iter_s`: tables have plain cells."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            nested: Mapping[str, Any] = value
            flat |= {f"{name}.{inner}": cell for inner, cell in flat_row(nested).items()}
        else:
            flat[name] = value
    return flat


def _switch(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": row["step"],
        "hybrids_training": [row["current"]["hybrids_training"], row["candidate"]["hybrids_training"]],
        "binding": row["binding"],
        "outcome": row["outcome"],
        "error": row.get("error", ""),
        "predicted_gain_s_per_step": row["gain_s_per_step"],
        "realised_gain_s_per_step": row.get("realised_gain_s_per_step"),
        "predicted_cost_s": row["cost_s"],
        "realised_cost_s": row.get("realised_cost_s"),
    }


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
