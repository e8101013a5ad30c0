"""What a finished run amounts to, computed from its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

_FIRST = 3
_LAST = 5
SUMMARISED = {
    "progress/wall_s",
    "reward/mean",
    "iteration/t_iter_s",
    "iteration/t_train_s",
    "iteration/t_rollout_s",
    "rollout/generated_tokens",
    "train/policy_version",
}
"""Metrics that a row must have to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The JSON line of `libra train --json`, over all iterations of the run, resumed ones included."""

    steps: int
    reward_first: float
    """Mean reward of the first 3 iterations."""
    reward_first_5: float
    reward_last: float
    """Mean reward of the last 5 iterations."""
    tokens_per_s: float
    """Generated tokens per second of iteration time."""
    t_rollout_s: float
    """Mean seconds per iteration in which the fleet worked."""
    t_train_s: float
    """Mean seconds per iteration in which the trainer worked."""
    t_iter_s: float
    """Mean wall time of an iteration."""
    overlap_fraction: float
    """Share of all training time in which the fleet worked too."""
    policy_version: int
    run_dir: str
    heldout: dict[str, float] = field(default_factory=dict[str, float])
    """Success on held-out prompts; empty when none were scored."""
    trajectories: dict[str, int] = field(default_factory=dict[str, int])
    """What became of the trajectories of all steps, counted by id; `lost` and `doubled` are 0."""
    replanning: dict[str, Any] = field(default_factory=dict[str, Any])
    """Looks at the plan, the time that they took, and predicted and realised gain of what was applied."""
    plan: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of a run that was planned: forecast and measured T_iter of the steady state, and forecast over measured."""
    stopped_early: bool = False
    """By `libra stop`; the run can be resumed."""
    mlflow_run_id: str | None = None
    mlflow_url: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def metrics(self) -> dict[str, float]:
        """`summary/*` and `heldout/*`, for comparison between runs."""
        every = asdict(self) | {f"plan_{key}": value for key, value in self.plan.items()}
        values = {key: value for key, value in every.items() if isinstance(value, int | float) and not isinstance(value, bool)}
        return {f"summary/{key}": float(value) for key, value in values.items()} | {
            f"heldout/{key}": value for key, value in self.heldout.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """Where a run is found."""

    run_dir: str
    mlflow_run_id: str | None = None
    mlflow_url: str | None = None


def summarise(rows: Sequence[Mapping[str, Any]], place: RunPlace, heldout: Mapping[str, float]) -> RunSummary:
    """Raises `ValueError` for a run without iterations."""
    if not rows:
        raise ValueError("a run without iterations has no summary")
    rewards = [float(row["reward/mean"]) for row in rows]
    total_s = sum(row["iteration/t_iter_s"] for row in rows)
    train_s = sum(row["iteration/t_train_s"] for row in rows)
    overlap_s = sum(row["iteration/t_train_s"] * row.get("iteration/overlap_fraction", 0.0) for row in rows)
    return RunSummary(
        steps=len(rows),
        reward_first=fmean(rewards[:_FIRST]),
        reward_first_5=fmean(rewards[:_LAST]),
        reward_last=fmean(rewards[-_LAST:]),
        tokens_per_s=sum(row["rollout/generated_tokens"] for row in rows) / total_s if total_s else 0.0,
        t_rollout_s=fmean(row["iteration/t_rollout_s"] for row in rows),
        t_train_s=train_s / len(rows),
        t_iter_s=total_s / len(rows),
        overlap_fraction=overlap_s / train_s if train_s else 0.0,
        policy_version=int(rows[-1]["train/policy_version"]),
        heldout=dict(heldout),
        run_dir=place.run_dir,
        mlflow_run_id=place.mlflow_run_id,
        mlflow_url=place.mlflow_url,
    )
