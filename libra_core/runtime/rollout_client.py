"""`RolloutPool` over the coordinator and the store, and the iteration's time account."""

import time
from collections import defaultdict
from statistics import fmean
from typing import Any

from libra_core.config import LibraConfig
from libra_core.errors import DeadlineError, ResourceError
from libra_core.runtime.clients import TrainerClient, ask
from libra_core.runtime.coordinator import TraceSpan
from libra_core.runtime.fleet import ActorHandle
from libra_core.runtime.publisher import WeightPublisher
from libra_core.runtime.store import batch_name
from libra_core.runtime.timeline import clipped, intersection, merged, total_s
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.reports import EngineStats, IterationReport, PublicationReport, RewardReport, RolloutReport, UpdateReport
from libra_core.types.trajectory import FinishReason, ToolStatus

_LOOK_EVERY_S = 5.0
"""How often a waiting step asks whether the fleet is still able to deliver."""


class RolloutClient:
    """Only the flow's process holds one; it measures iterations by that process's clock."""

    def __init__(
        self,
        config: LibraConfig,
        *,
        coordinator: ActorHandle,
        store: ActorHandle,
        scorer: ActorHandle,
        trainer: TrainerClient,
        publisher: WeightPublisher,
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._store = store
        self._scorer = scorer
        self._trainer = trainer
        self._publisher = publisher
        self._iteration_started_s = time.time()

    def take_batch(self, step: int) -> RolloutReport:
        """Wait for the groups of this step, up to `rollout.batch_deadline_s`."""
        start_s = time.monotonic()
        deadline_s = self._config.rollout.batch_deadline_s
        while True:
            left_s = deadline_s - (time.monotonic() - start_s)
            look_s = max(0.0, min(_LOOK_EVERY_S, left_s))
            choice = ask(f"the batch of step {step}", self._store.take.remote(step, look_s), look_s + 60.0)
            if choice.complete:
                break
            state = ask("the fleet's state", self._coordinator.state.remote())
            self._require_engine(step, state)
            if left_s <= 0:
                raise DeadlineError(self._who_is_late(step, choice.late, state))
        groups = ask(f"the groups of step {step}", self._store.groups.remote(batch_name(step)))
        counts = ask("the store's counts", self._store.counts.remote())
        return summarise_batch(step, groups, counts, waited_s=time.monotonic() - start_s)

    def publish(self, version: PolicyVersion) -> PublicationReport:
        return self._publisher.publish(version)

    def stats(self) -> tuple[EngineStats, ...]:
        return tuple(ask("engine stats", self._coordinator.stats.remote()))

    def evaluate_heldout(self) -> dict[str, float]:
        """Mean reward on held-out prompts under the current weights, one sample each; overall and per kind."""
        count = self._config.workload.heldout_prompts
        if count == 0:
            return {}
        deadline_s = self._config.rollout.batch_deadline_s
        pairs = ask("held-out rollouts", self._coordinator.evaluate_heldout.remote(count), deadline_s)
        scored = ask("held-out rewards", self._scorer.score_alone.remote(pairs), deadline_s)
        rewards: dict[str, list[float]] = defaultdict(list)
        for (prompt, _), trajectory in zip(pairs, scored, strict=True):
            if trajectory.reward is not None:
                rewards["reward_mean"].append(trajectory.reward)
                rewards[f"{prompt.kind.rpartition('/')[2]}_mean"].append(trajectory.reward)
        return {name: fmean(values) for name, values in sorted(rewards.items())}

    def sample_trajectories(self, batch_id: BatchId, count: int) -> list[dict[str, Any]]:
        return ask("sample trajectories", self._scorer.samples.remote(batch_id, count))

    def iteration_report(
        self, step: int, rollout: RolloutReport, reward: RewardReport, update: UpdateReport, publication: PublicationReport
    ) -> IterationReport:
        """Close the account of the iteration that began where the one before ended."""
        window = (self._iteration_started_s, time.time())
        self._iteration_started_s = window[1]
        fleet = clipped(ask("busy intervals", self._coordinator.busy_intervals.remote(window[0])), window)
        trainer = clipped([(start, end) for _, start, end in self._trainer.work(window[0])], window)
        train_s, iter_s = total_s(trainer), window[1] - window[0]
        return IterationReport(
            step=step,
            rollout=rollout,
            reward=reward,
            update=update,
            publication=publication,
            t_iter_s=iter_s,
            t_rollout_s=total_s(fleet),
            t_train_s=train_s,
            overlap_fraction=total_s(intersection(merged(fleet), merged(trainer))) / train_s if train_s > 0 else 0.0,
            tokens_per_s=rollout.generated_tokens / iter_s,
        )

    def begin_iterations(self) -> None:
        """Start the clock of the first iteration."""
        self._iteration_started_s = time.time()

    def trace_events(self, since_s: float) -> list[dict[str, Any]]:
        """Chrome trace events (microseconds) of engines, tools and trainer since a unix time."""
        spans: list[TraceSpan] = ask("trace spans", self._coordinator.spans.remote(since_s))
        spans += [TraceSpan(name=n, lane="trainer", start_s=s, end_s=e) for n, s, e in self._trainer.work(since_s)]
        return [_chrome_event(span) for span in spans]

    def _require_engine(self, step: int, state: dict[str, Any]) -> None:
        """Publish again when that is what a replaced engine waits for; fail at once when no engine is left for good."""
        if state["fault"]:
            raise ResourceError(f"step {step} cannot be filled, the rollout coordinator failed: {state['fault']}")
        if state["waiting_for_weights"]:
            self._publisher.publish(PolicyVersion(state["version"]))
        elif state["failure"] and not state["engines"]:
            raise ResourceError(f"step {step} cannot be filled, no engine is left: {state['failure']}")

    def _who_is_late(self, step: int, late: tuple[int, ...], state: dict[str, Any]) -> str:
        running = ", ".join(map(str, state["running_groups"]))
        waiting_for = f"groups {', '.join(map(str, late))} at their age limit" if late else "more finished groups"
        return (
            f"step {step} waited {self._config.rollout.batch_deadline_s:.0f} s (rollout.batch_deadline_s) for {waiting_for}; "
            f"running groups: {running or 'none'}; trajectories per engine: {state['engines'] or 'no engine'}"
        )


def summarise_batch(step: int, groups: list[TrajectoryGroup], counts: dict[str, int], *, waited_s: float) -> RolloutReport:
    """Counts and times of one batch; lost samples count only in the group counters."""
    samples = [t for group in groups for t in group.usable]
    staleness = [step - t.oldest_version for t in samples if t.versions]
    tool_returns = [answer for t in samples for answer in t.tool_returns]
    return RolloutReport(
        step=step,
        batch_id=batch_name(step),
        policy_version=PolicyVersion(step),
        trajectories=len(samples),
        groups=len(groups),
        prompt_tokens=sum(t.prompt_tokens for t in samples),
        generated_tokens=sum(t.generated_tokens for t in samples),
        tool_tokens=sum(answer.payload_tokens for answer in tool_returns),
        mean_turns=fmean(t.turns for t in samples) if samples else 0.0,
        truncated=sum(t.finish_reason is FinishReason.LENGTH for t in samples),
        tool_calls=len(tool_returns),
        tool_errors=sum(answer.status is not ToolStatus.OK for answer in tool_returns),
        staleness_mean=fmean(staleness) if staleness else 0.0,
        staleness_max=max(staleness, default=0),
        waited_s=waited_s,
        generation_s=max((t.finished_s for t in samples), default=0.0) - min((t.started_s for t in samples), default=0.0),
        groups_retried=counts["retried"],
        groups_partial=counts["partial"],
        groups_dropped=counts["dropped"],
    )


def _chrome_event(span: TraceSpan) -> dict[str, Any]:
    return {
        "name": span.name,
        "cat": span.lane.rstrip("0123456789-"),
        "ph": "X",
        "ts": span.start_s * 1e6,
        "dur": (span.end_s - span.start_s) * 1e6,
        "pid": 1,
        "tid": span.lane,
    }
