"""Reports of one iteration with plausible numbers; tests name only what they claim something about."""

from typing import Any

from libra_core.types.ids import BatchId, EngineId, PolicyVersion
from libra_core.types.reports import (
    EnginePublication,
    IterationReport,
    PublicationReport,
    RewardReport,
    RolloutReport,
    TimeBreakdown,
    UpdateReport,
)


def rollout_report(step: int = 0, **changes: Any) -> RolloutReport:
    values: dict[str, Any] = {
        "step": step,
        "batch_id": BatchId(f"step-{step:06d}"),
        "policy_version": PolicyVersion(step),
        "trajectories": 8,
        "groups": 2,
        "prompt_tokens": 160,
        "generated_tokens": 400,
        "tool_tokens": 100,
        "longest_tokens": 120,
        "longest_generated_tokens": 80,
        "squared_tokens": 60_000,
        "longest_tool_s": 0.1,
        "mean_turns": 2.0,
        "truncated": 2,
        "tool_calls": 8,
        "tool_errors": 0,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "staleness_histogram": {0: 4, 1: 4},
        "waited_groups": 0,
        "finished_tokens_mean": 52.0,
        "trained_tokens_mean": 50.0,
        "waited_s": 0.1,
        "waited_age_s": 0.0,
        "context_tokens": 700,
        "cached_tokens": 500,
        "reprefilled_tokens": 0,
        "generation_s": 1.0,
    }
    return RolloutReport(**(values | changes))


def reward_report(step: int = 0, **changes: Any) -> RewardReport:
    values: dict[str, Any] = {
        "batch_id": BatchId(f"step-{step:06d}"),
        "mean": 0.25,
        "std": 0.4,
        "groups_with_signal": 0.5,
        "failed": 0,
        "by_kind": {"one_hop": 0.5, "two_hop": 0.0},
        "duration_s": 0.01,
    }
    return RewardReport(**(values | changes))


def update_report(step: int = 0, **changes: Any) -> UpdateReport:
    values: dict[str, Any] = {
        "step": step,
        "policy_version": PolicyVersion(step + 1),
        "loss": 0.1,
        "grad_norm": 1.0,
        "entropy": 2.0,
        "kl": 0.001,
        "clip_fraction": 0.01,
        "dual_clip_fraction": 0.0,
        "importance_mean": 1.0,
        "importance_max": 1.5,
        "learning_rate": 1e-4,
        "tokens": 660,
        "loss_tokens": 400,
        "micro_batches": 2,
        "logprob_s": 0.0,
        "forward_backward_s": 0.5,
        "optimizer_s": 0.1,
        "duration_s": 0.7,
        "started_s": 1000.0,
    }
    return UpdateReport(**(values | changes))


def publication_report(version: int = 1, **changes: Any) -> PublicationReport:
    engine = EnginePublication(engine_id=EngineId("engine-0"), pause_s=0.01, load_s=0.02, resume_s=0.01)
    values: dict[str, Any] = {
        "policy_version": PolicyVersion(version),
        "transfer_s": 0.05,
        "total_s": 0.1,
        "bytes": 4_000_000,
        "engines": (engine,),
        "canary_max_error": 1e-5,
    }
    return PublicationReport(**(values | changes))


def time_breakdown(**changes: float) -> TimeBreakdown:
    values = {
        "trainer_busy_s": 0.8,
        "trainer_waits_groups_s": 0.9,
        "trainer_waits_age_s": 0.0,
        "trainer_waits_publication_s": 0.1,
        "trainer_other_s": 0.2,
        "fleet_busy_s": 1.7,
        "fleet_reprefill_s": 0.0,
        "fleet_paused_s": 0.04,
        "fleet_starved_s": 0.26,
    }
    return TimeBreakdown(**(values | changes))


def iteration_report(step: int = 0, **changes: Any) -> IterationReport:
    values: dict[str, Any] = {
        "step": step,
        "rollout": rollout_report(step),
        "reward": reward_report(step),
        "update": update_report(step),
        "publication": publication_report(step + 1),
        "t_iter_s": 2.0,
        "t_rollout_s": 1.8,
        "t_train_s": 0.8,
        "overlap_fraction": 0.75,
        "tokens_per_s": 200.0,
        "breakdown": time_breakdown(),
        "preemptions": 0,
        "kv_usage_max": 0.3,
        "queued": 0,
    }
    return IterationReport(**(values | changes))
