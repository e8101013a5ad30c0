"""From groups to the small reports that tasks return."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles

from libra_core.runtime.rollout.store import batch_name
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import PolicyVersion
from libra_core.types.reports import RolloutReport
from libra_core.types.trajectory import FinishReason, ToolStatus


@dataclass(slots=True, kw_only=True)
class Wait:
    """What a step waited for."""

    total_s: float = 0.0
    age_s: float = 0.0
    """For groups at their age limit, while enough others were ready."""
    late_groups: set[int] = field(default_factory=set[int])


def summarise_batch(
    step: int, groups: list[TrajectoryGroup], counts: dict[str, int], wait: Wait, mean_lengths: tuple[float, float]
) -> RolloutReport:
    """Counts and times of one batch; lost samples count only in the group counters.

    `mean_lengths` are the store's: of all finished trajectories and of those taken.
    """
    samples = [t for group in groups for t in group.usable]
    staleness = [step - t.oldest_version for t in samples if t.versions]
    tool_returns = [answer for t in samples for answer in t.tool_returns]
    lengths = [len(t.token_ids) for t in samples]
    return RolloutReport(
        step=step,
        batch_id=batch_name(step),
        policy_version=PolicyVersion(step),
        trajectories=len(samples),
        groups=len(groups),
        prompt_tokens=sum(t.prompt_tokens for t in samples),
        generated_tokens=sum(t.generated_tokens for t in samples),
        tool_tokens=sum(answer.payload_tokens for answer in tool_returns),
        longest_tokens=max(lengths, default=0),
        longest_generated_tokens=max((t.generated_tokens for t in samples), default=0),
        squared_tokens=sum(length**2 for length in lengths),
        longest_tool_s=max((sum(a.duration_s + a.waited_s for a in t.tool_returns) for t in samples), default=0.0),
        mean_turns=_mean(t.turns for t in samples),
        truncated=sum(t.finish_reason is FinishReason.LENGTH for t in samples),
        tool_calls=len(tool_returns),
        tool_errors=sum(answer.status is not ToolStatus.OK for answer in tool_returns),
        tool_timeouts=sum(answer.status is ToolStatus.TIMEOUT for answer in tool_returns),
        tool_malformed=sum(answer.status is ToolStatus.MALFORMED for answer in tool_returns),
        tool_mean_s=_mean(answer.duration_s for answer in tool_returns),
        tool_p90_s=_p90([answer.duration_s for answer in tool_returns]),
        tool_queue_mean_s=_mean(answer.waited_s for answer in tool_returns),
        tool_queue_max_s=max((answer.waited_s for answer in tool_returns), default=0.0),
        staleness_mean=_mean(staleness),
        staleness_max=max(staleness, default=0),
        staleness_histogram=dict(sorted(Counter(staleness).items())),
        waited_groups=len(wait.late_groups),
        finished_tokens_mean=mean_lengths[0],
        trained_tokens_mean=mean_lengths[1],
        waited_s=wait.total_s,
        waited_age_s=wait.age_s,
        context_tokens=sum(t.context_tokens for t in samples),
        cached_tokens=sum(t.cached_tokens for t in samples),
        reprefilled_tokens=sum(t.reprefilled_tokens for t in samples),
        generation_s=max((t.finished_s for t in samples), default=0.0) - min((t.started_s for t in samples), default=0.0),
        groups_retried=counts["retried"],
        groups_partial=counts["partial"],
        groups_dropped=counts["dropped"],
    )


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return fmean(kept) if kept else 0.0


def _p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else 0.0
