"""From an iteration's reports to metrics with stable names, `group/name_unit`. `docs/metrics.md` is made from this table."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from libra_core.tracking.ledger import PLAN_METRICS
from libra_core.types.forecast import StepForecast
from libra_core.types.reports import IterationReport, RoutingReport

_LONGEST_SLUG = 100
"""MLflow's names end at 250 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One curve."""

    name: str
    meaning: str
    read: Callable[[IterationReport], float]


def _metric(name: str, meaning: str, read: Callable[[IterationReport], float]) -> Metric:
    return Metric(name=name, meaning=meaning, read=read)


def _routing(name: str, meaning: str, read: Callable[[RoutingReport], float]) -> Metric:
    return _metric(f"routing/{name}", meaning, lambda r: math.nan if r.routing is None else read(r.routing))


METRICS: tuple[Metric, ...] = (
    _metric("iteration/t_iter_s", "wall time of the iteration", lambda r: r.t_iter_s),
    _metric("iteration/t_rollout_s", "time in it during which the fleet had unfinished requests", lambda r: r.t_rollout_s),
    _metric("iteration/t_train_s", "time in it during which the trainer worked (update and export)", lambda r: r.t_train_s),
    _metric("iteration/overlap_fraction", "share of T_train during which the fleet worked too", lambda r: r.overlap_fraction),
    _metric("iteration/tokens_per_s", "generated tokens of the batch per second of T_iter", lambda r: r.tokens_per_s),
    _metric("iteration/preemptions", "requests that engines put back for want of KV cache", lambda r: r.preemptions),
    _metric("iteration/kv_usage_max_fraction", "fullest KV cache at the end of the iteration", lambda r: r.kv_usage_max),
    _metric("iteration/queued", "trajectories without a place on an engine at its end", lambda r: r.queued),
    _metric("forecast/t_train_s", "T_train as forecast before the iteration, export left out", lambda r: _forecast(r).t_train_s),
    _metric(
        "forecast/t_rollout_s",
        "T_rollout as forecast before it: one batch that starts together",
        lambda r: _forecast(r).t_rollout_s,
    ),
    _metric(
        "forecast/t_train_error_fraction",
        "its error against `iteration/t_train_s`, absolute and relative, running mean",
        lambda r: r.forecast.t_train_error if r.forecast else math.nan,
    ),
    _metric(
        "forecast/t_rollout_error_fraction",
        "its error against `iteration/t_rollout_s`, absolute and relative, running mean",
        lambda r: r.forecast.t_rollout_error if r.forecast else math.nan,
    ),
    _metric("time/trainer_busy_s", "trainer: forward, backward and optimizer", lambda r: r.breakdown.trainer_busy_s),
    _metric("time/trainer_waits_groups_s", "trainer: groups still being generated", lambda r: r.breakdown.trainer_waits_groups_s),
    _metric("time/trainer_waits_age_s", "trainer: one group at its age limit", lambda r: r.breakdown.trainer_waits_age_s),
    _metric("time/trainer_waits_publication_s", "trainer: new weights", lambda r: r.breakdown.trainer_waits_publication_s),
    _metric("time/trainer_other_s", "trainer: calls, scoring, logging, checkpoints", lambda r: r.breakdown.trainer_other_s),
    _metric("time/fleet_busy_s", "fleet: generating, mean over engines", lambda r: r.breakdown.fleet_busy_s),
    _metric("time/fleet_reprefill_s", "fleet: computing context again", lambda r: r.breakdown.fleet_reprefill_s),
    _metric("time/fleet_paused_s", "fleet: held for a swap of weights", lambda r: r.breakdown.fleet_paused_s),
    _metric("time/fleet_starved_s", "fleet: no request at all", lambda r: r.breakdown.fleet_starved_s),
    _metric("rollout/trajectories", "trajectories in the batch", lambda r: r.rollout.trajectories),
    _metric("rollout/groups", "prompts in the batch", lambda r: r.rollout.groups),
    _metric("rollout/prompt_tokens", "prompt tokens", lambda r: r.rollout.prompt_tokens),
    _metric("rollout/generated_tokens", "tokens sampled by the policy", lambda r: r.rollout.generated_tokens),
    _metric("rollout/tool_tokens", "tokens returned by tools", lambda r: r.rollout.tool_tokens),
    _metric("rollout/mean_turns", "turns per trajectory", lambda r: r.rollout.mean_turns),
    _metric("rollout/truncated_fraction", "share of trajectories that ended by length", lambda r: _share(r.rollout.truncated, r)),
    _metric("rollout/tool_calls", "tool calls", lambda r: r.rollout.tool_calls),
    _metric("rollout/tool_errors", "tool calls that did not return `ok`", lambda r: r.rollout.tool_errors),
    _metric(
        "rollout/staleness_mean_versions", "versions between oldest sampled token and update", lambda r: r.rollout.staleness_mean
    ),
    _metric("rollout/staleness_max_versions", "its maximum over the batch", lambda r: r.rollout.staleness_max),
    _metric("rollout/waited_s", "time the step waited for its batch", lambda r: r.rollout.waited_s),
    _metric("rollout/cache_hit_fraction", "share of prompt tokens served from a prefix cache", lambda r: _cache_hits(r)),
    _metric("rollout/waited_groups", "groups at their age limit that it waited for", lambda r: r.rollout.waited_groups),
    _metric(
        "rollout/finished_tokens_mean",
        "generated tokens per trajectory, all finished ones",
        lambda r: r.rollout.finished_tokens_mean,
    ),
    _metric(
        "rollout/trained_tokens_mean",
        "the same of those trained; lower where a long tail is delayed or dropped",
        lambda r: r.rollout.trained_tokens_mean,
    ),
    _metric("rollout/waited_age_s", "of it, for one group at its age limit", lambda r: r.rollout.waited_age_s),
    _metric("rollout/context_tokens", "prompt tokens of all turns", lambda r: r.rollout.context_tokens),
    _metric("rollout/cached_tokens", "of these, served from a prefix cache", lambda r: r.rollout.cached_tokens),
    _metric("rollout/reprefilled_tokens", "of these, computed again", lambda r: r.rollout.reprefilled_tokens),
    _metric("rollout/generation_s", "first request to last token of the batch", lambda r: r.rollout.generation_s),
    _metric("rollout/groups_retried", "groups sampled again for want of infrastructure", lambda r: r.rollout.groups_retried),
    _metric("rollout/groups_partial", "groups trained without all their samples", lambda r: r.rollout.groups_partial),
    _metric("rollout/groups_dropped", "groups left out", lambda r: r.rollout.groups_dropped),
    _metric("tools/calls", "tool calls of the batch", lambda r: r.rollout.tool_calls),
    _metric("tools/timeouts", "of these, past a deadline", lambda r: r.rollout.tool_timeouts),
    _metric("tools/malformed", "of these, not to be understood", lambda r: r.rollout.tool_malformed),
    _metric(
        "tools/errors",
        "of these, answered with `error`",
        lambda r: r.rollout.tool_errors - r.rollout.tool_timeouts - r.rollout.tool_malformed,
    ),
    _metric("tools/mean_s", "time per tool call, its wait for a place left out", lambda r: r.rollout.tool_mean_s),
    _metric("tools/p90_s", "its 90th percentile", lambda r: r.rollout.tool_p90_s),
    _metric(
        "tools/queue_mean_s",
        "time per tool call before it had a place (`commands_at_once`, `tool_threads`, …)",
        lambda r: r.rollout.tool_queue_mean_s,
    ),
    _metric("tools/queue_max_s", "its maximum; `rollout.queue_deadline_s` bounds it", lambda r: r.rollout.tool_queue_max_s),
    _routing("moves", "turns that went on on another engine", lambda r: r.moves),
    _routing("moved_tokens", "context of these", lambda r: r.moved_tokens),
    _routing("moved_fraction", "of all tokens of the trajectories that ended", lambda r: r.moved_fraction),
    _routing(
        "moved_first_token_s", "request to first token of turns that began with a move, summed", lambda r: r.moved_first_token_s
    ),
    _routing("handed_over_tokens", "context that targets loaded, for moves made or foreseen", lambda r: r.handed_over_tokens),
    _routing("handover_s", "from asking the source to the target's first token, of these moves", lambda r: r.handover_s),
    _routing("reprefilled_tokens", "context that targets of moves computed", lambda r: r.reprefilled_tokens),
    _routing("reprefill_s", "until the target's first token, of the moves that loaded nothing", lambda r: r.reprefill_s),
    _routing("ahead", "moves foreseen, computed ahead on the target", lambda r: r.ahead),
    _routing("ahead_s", "prefill that ran while tools ran", lambda r: r.ahead_s),
    _routing("decisions", "engines chosen", lambda r: r.decisions),
    _routing("decision_p50_us", "median time of one choice", lambda r: r.decision_p50_us),
    _routing("decision_p99_us", "its 99th percentile", lambda r: r.decision_p99_us),
    _routing("accuracy", "share that ended in the bucket of its length, with one move at most", lambda r: r.accuracy),
    _routing("tail_recall", "share of the longest tenth that ended in the last bucket", lambda r: r.tail_recall),
    _routing("tree_nodes", "states in the prefix tree", lambda r: r.tree_nodes),
    _metric("reward/mean", "mean reward of the batch", lambda r: r.reward.mean),
    _metric("reward/std", "its standard deviation", lambda r: r.reward.std),
    _metric("reward/groups_with_signal_fraction", "groups whose rewards differ", lambda r: r.reward.groups_with_signal),
    _metric("reward/failed", "trajectories that infrastructure lost", lambda r: r.reward.failed),
    _metric("reward/masked", "trajectories without one because they were cut at the length limit", lambda r: r.reward.masked),
    _metric("reward/duration_s", "time to score the batch", lambda r: r.reward.duration_s),
    _metric("train/loss", "policy loss", lambda r: r.update.loss),
    _metric("train/grad_norm", "gradient norm before clipping", lambda r: r.update.grad_norm),
    _metric("train/entropy_nats", "mean entropy of the policy per loss token", lambda r: r.update.entropy),
    _metric("train/mismatch_kl_nats", "k3 between sampler and trainer", lambda r: r.update.kl),
    _metric("train/clip_fraction", "share of loss tokens whose ratio was clipped", lambda r: r.update.clip_fraction),
    _metric(
        "train/dual_clip_fraction",
        "share of loss tokens of negative advantage whose ratio was beyond `training.loss.clip_dual`",
        lambda r: r.update.dual_clip_fraction,
    ),
    _metric("train/importance_mean", "mean importance ratio", lambda r: r.update.importance_mean),
    _metric("train/importance_max", "largest importance ratio", lambda r: r.update.importance_max),
    _metric("train/learning_rate", "learning rate of the step", lambda r: r.update.learning_rate),
    _metric("train/tokens", "tokens in the forward pass, over all ranks", lambda r: r.update.tokens),
    _metric("train/loss_tokens", "tokens that carry loss", lambda r: r.update.loss_tokens),
    _metric("train/micro_batches", "packed micro-batches", lambda r: r.update.micro_batches),
    _metric("train/logprob_s", "time to recompute log-probs", lambda r: r.update.logprob_s),
    _metric("train/forward_backward_s", "time of forward and backward passes", lambda r: r.update.forward_backward_s),
    _metric("train/optimizer_s", "time of the optimizer step", lambda r: r.update.optimizer_s),
    _metric("train/duration_s", "time of the whole update", lambda r: r.update.duration_s),
    _metric("train/skipped", "1 when the batch held no learning signal", lambda r: float(r.update.skipped)),
    _metric("train/policy_version", "version after the step", lambda r: r.update.policy_version),
    _metric("elastic/hybrid_replicas", "hybrid replicas whose gradient is in the step", lambda r: r.update.hybrid_replicas),
    _metric("elastic/hybrid_tokens", "tokens that they trained", lambda r: r.update.hybrid_tokens),
    _metric("elastic/lost_sequences", "sequences the core trained because a replica was lost", lambda r: r.update.lost_sequences),
    _metric("elastic/wait_s", "time the step waited for hybrid replicas", lambda r: r.update.hybrid_wait_s),
    _metric("elastic/stall_s", "time of the core's training thread in copies for them", lambda r: r.update.hybrid_stall_s),
    _metric("publication/transfer_s", "export from the trainer", lambda r: r.publication.transfer_s),
    _metric("publication/total_s", "until every engine serves the new weights", lambda r: r.publication.total_s),
    _metric("publication/bytes", "size of the weights", lambda r: r.publication.bytes),
    _metric("publication/paused_max_s", "longest pause of an engine", lambda r: _longest_pause(r)),
    _metric(
        "publication/canary_max_error_nats",
        "engine against trainer on the canary prompt",
        lambda r: r.publication.canary_max_error,
    ),
)
"""Every iteration has all of them, except those that are not finite. `reward/kind_*_mean` follow the workload's prompt kinds."""


def iteration_metrics(report: IterationReport) -> dict[str, float]:
    """All finite metrics of one iteration, in the table's order."""
    values = {metric.name: float(metric.read(report)) for metric in METRICS}
    ages = report.rollout.staleness_histogram
    values |= {f"rollout/staleness_{age}_fraction": count / sum(ages.values()) for age, count in ages.items()}
    values |= {f"reward/kind_{name}_mean": mean for name, mean in _by_slug(report.reward.by_kind).items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def metrics_markdown() -> str:
    """The table as a documentation page."""
    rows = "\n".join(f"| `{metric.name}` | {metric.meaning} |" for metric in METRICS)
    plan = "".join(f"| `{name}` | {meaning}; of replanning rounds only |\n" for name, meaning in PLAN_METRICS.items())
    return (
        "# Metrics\n\nMade by `libra docs metrics` from `libra_core/tracking/metrics.py`. Steps count from 0. "
        "Values that are not finite are left out.\n\n"
        f"| metric | meaning |\n|---|---|\n{rows}\n"
        "| `rollout/staleness_<n>_fraction` | share of trajectories whose oldest token is n versions old |\n"
        "| `reward/kind_<kind>_mean` | mean reward of the prompts of one kind |\n"
        f"{plan}"
        "| `progress/wall_s` | training time since the run began, resumed parts included |\n"
        "| `progress/generated_tokens` | tokens sampled since the run began |\n"
        "| `summary/*` | one value per run, set at its end; the keys of `libra train --json` |\n"
        "| `heldout/*` | success on held-out prompts, scored once at the end |\n"
    )


def _share(count: int, report: IterationReport) -> float:
    return count / report.rollout.trajectories if report.rollout.trajectories else math.nan


def _forecast(report: IterationReport) -> StepForecast:
    return report.forecast.forecast if report.forecast else StepForecast(t_train_s=math.nan, t_rollout_s=math.nan)


def _longest_pause(report: IterationReport) -> float:
    return max((engine.paused_s for engine in report.publication.engines), default=math.nan)


def _cache_hits(report: IterationReport) -> float:
    rollout = report.rollout
    return rollout.cached_tokens / rollout.context_tokens if rollout.context_tokens else math.nan


def _by_slug(by_kind: Mapping[str, float]) -> dict[str, float]:
    """Kinds whose names differ in signs alone are numbered."""
    values: dict[str, float] = {}
    for kind, mean in sorted(by_kind.items()):
        slug = name = slug_of(kind)
        number = 1
        while name in values:
            number += 1
            name = f"{slug}_{number}"
        values[name] = mean
    return values


def slug_of(kind: str) -> str:
    """Letters and digits of any script, which MLflow takes in names."""
    return re.sub(r"[\W_]+", "_", kind.casefold()).strip("_")[:_LONGEST_SLUG] or "unnamed"
