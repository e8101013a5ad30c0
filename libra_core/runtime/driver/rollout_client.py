"""`RolloutPool` over the coordinator and the store: batches, held-out evaluation, and the iteration's account of time."""

import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean, quantiles

from libra_core.config import LibraConfig
from libra_core.errors import DeadlineError, ResourceError, RolloutError
from libra_core.planning.run_forecast import RunForecaster
from libra_core.runtime.base.rpc import CALL_DEADLINE_S, GRACE_S, ActorHandle, answered, ask
from libra_core.runtime.base.time_breakdown import (
    Interval,
    IterationTimes,
    clipped,
    engine_deltas,
    engine_work,
    intersection,
    time_breakdown,
    total_s,
    training_intervals,
)
from libra_core.runtime.driver.clients import TrainerClient
from libra_core.runtime.driver.weight_publisher import WeightPublisher
from libra_core.runtime.rollout.coordinator import RolloutState
from libra_core.runtime.rollout.scorer import is_masked
from libra_core.runtime.rollout.store import BatchShare, GroupCounts, batch_name
from libra_core.tracking.metrics import slug_of
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import BatchId, EngineId, PolicyVersion
from libra_core.types.lengths import LengthRecord
from libra_core.types.reports import (
    EngineStats,
    IterationReport,
    PublicationReport,
    RewardReport,
    RolloutReport,
    RoutingReport,
    TrajectoryAudit,
    TrajectoryText,
    UpdateReport,
)
from libra_core.types.trace import TraceSpan
from libra_core.types.trajectory import FinishReason, ToolStatus

_POLL_EVERY_S = 5.0
"""How often a waiting step asks whether the fleet is still able to deliver."""


@dataclass(slots=True, kw_only=True)
class Wait:
    """What a step waited for."""

    total_s: float = 0.0
    age_s: float = 0.0
    """For groups at their age limit, while enough others were ready."""
    late_groups: set[int] = field(default_factory=set[int])


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
        self._waits: list[Interval] = []
        self._publications: list[Interval] = []
        self._engines: dict[EngineId, EngineStats] = {}
        self.begin_iterations()

    def begin_iterations(self, forecaster: RunForecaster | None = None) -> None:
        """Start the clock of the first iteration; with a forecaster, reports compare each iteration with its forecast."""
        self._forecaster = forecaster
        self._iteration_started_s = time.time()

    def take_batch(self, step: int) -> RolloutReport:
        """Wait for the groups of this step, up to `rollout.batch_deadline_s`.

        A streamed step opens here: each group goes to the trainer as it is taken. In colocated mode the engines are held once
        the batch is whole.
        """
        start_s = time.time()
        wait = self._collect(step)
        if self._config.rollout.mode == "colocated":
            ask("the engines to hold", self._coordinator.hold.remote(), self._config.publication.deadline_s + GRACE_S)
        self._waits.append((start_s, time.time()))
        groups = ask(f"the groups of step {step}", self._store.groups.remote(batch_name(step)))
        counts = ask("the store's counts", self._store.counts.remote())
        lengths = ask("the store's lengths", self._store.mean_lengths.remote())
        wait.total_s = time.time() - start_s
        return summarise_batch(step, groups, counts, wait, lengths)

    def publish(self, version: PolicyVersion) -> PublicationReport:
        """Wait until every engine serves the version."""
        with self._publishing():
            return self._publisher.publish(version)

    def begin_publication(self, version: PolicyVersion) -> PublicationReport:
        """Publish, or with overlap only do the trainer's part of it; the report is of the newest publication that has ended."""
        if not self._config.publications_overlap:
            return self.publish(version)
        with self._publishing():
            ended = self._publisher.finish()
            self._publisher.begin(version)
        return ended

    def finish_publication(self) -> None:
        """Wait for the one under way; raises what it failed with."""
        with self._publishing():
            self._publisher.finish()

    @contextmanager
    def _publishing(self) -> Generator[None]:
        start_s = time.time()
        yield
        self._publications.append((start_s, time.time()))

    def stats(self) -> tuple[EngineStats, ...]:
        """Of the engines that answer; the coordinator gives up those that do not within `rollout.turn_deadline_s`."""
        deadline_s = self._config.rollout.turn_deadline_s + GRACE_S
        return tuple(ask("the coordinator's statistics of the engines", self._coordinator.stats.remote(), deadline_s))

    def audit(self) -> TrajectoryAudit:
        """What became of the trajectories of all finished steps."""
        return ask("the store's audit", self._store.audit.remote())

    def evaluate_heldout(self) -> dict[str, float]:
        """Mean reward on held-out prompts under the current weights, one sample each; overall and per kind."""
        count = self._config.workload.heldout_prompts
        if count == 0:
            return {}
        self.finish_publication()
        deadline_s, since_s = self._config.rollout.batch_deadline_s, time.monotonic()
        scoring = self._coordinator.evaluate_heldout.remote(count)
        while not answered(scoring, _POLL_EVERY_S):
            state = self._fleet_state()
            self._serve_waiting(state)
            if time.monotonic() - since_s >= deadline_s:
                raise DeadlineError(self._who_waits("the evaluation", "held-out prompts", state))
        pairs = ask("held-out rollouts", scoring, CALL_DEADLINE_S)
        rewards: dict[str, list[float]] = defaultdict(list)
        for prompt, trajectory in pairs:
            reward = 0.0 if is_masked(trajectory) else trajectory.reward
            if reward is not None:
                rewards["reward_mean"].append(reward)
                rewards[f"{slug_of(prompt.kind.removeprefix('heldout/'))}_mean"].append(reward)
        return {name: fmean(values) for name, values in sorted(rewards.items())}

    def sample_trajectories(self, batch_id: BatchId, count: int) -> list[TrajectoryText]:
        return ask("the scorer's samples", self._scorer.samples.remote(batch_id, count), CALL_DEADLINE_S + GRACE_S)

    def lengths(self, batch_id: BatchId) -> list[LengthRecord]:
        """Of the batch's trajectories, while the store keeps it."""
        return ask("the lengths of a batch", self._store.lengths.remote(batch_id))

    def iteration_report(
        self, step: int, rollout: RolloutReport, reward: RewardReport, update: UpdateReport, publication: PublicationReport
    ) -> IterationReport:
        """Close the account of the iteration that began where the one before ended."""
        window = (self._iteration_started_s, time.time())
        self._iteration_started_s = window[1]
        fleet = clipped(ask("busy intervals", self._coordinator.busy_intervals.remote(window[0])), window)
        spans = self._trainer.spans(window[0])
        trainer = clipped(((span.start_s, span.end_s) for span in spans), window)
        stats = self.stats()
        deltas = engine_deltas(self._engines, stats)
        self._engines = {engine.engine_id: engine for engine in stats}
        state = self._fleet_state()
        routing: RoutingReport = ask("the router's report", self._coordinator.routing_report.remote())
        times = IterationTimes(
            window=window,
            training=training_intervals(spans, window),
            waiting=self._waits,
            waiting_age_s=rollout.waited_age_s,
            publishing=self._publications,
        )
        breakdown = time_breakdown(times, deltas, rollout)
        self._waits, self._publications = [], []
        train_s, iter_s = total_s(trainer), window[1] - window[0]
        report = IterationReport(
            step=step,
            rollout=rollout,
            reward=reward,
            update=update,
            publication=publication,
            t_iter_s=iter_s,
            t_rollout_s=total_s(fleet),
            t_train_s=train_s,
            overlap_fraction=total_s(intersection(fleet, trainer)) / train_s if train_s > 0 else 0.0,
            tokens_per_s=rollout.generated_tokens / iter_s,
            breakdown=breakdown,
            preemptions=sum(engine.preemptions for engine in deltas),
            kv_usage_max=max((engine.kv_usage for engine in stats), default=0.0),
            queued=state.queued,
            routing=routing,
            engines=engine_work(deltas),
        )
        return replace(report, forecast=self._forecaster.check(report)) if self._forecaster else report

    def length_records(self) -> list[LengthRecord]:
        """Of the newest trajectories that steps took."""
        return ask("the store's lengths", self._store.length_records.remote())

    def spans(self, since_s: float) -> list[TraceSpan]:
        """What engines, tools and trainer began since a unix time."""
        spans: list[TraceSpan] = ask("trace spans", self._coordinator.spans.remote(since_s))
        return [*spans, *(span for span in self._trainer.spans(since_s) if span.start_s >= since_s)]

    def _collect(self, step: int) -> Wait:
        """Take groups until the batch is whole."""
        batch_id, streamed = batch_name(step), self._config.streamed
        if streamed:
            self._trainer.open_step(batch_id, PolicyVersion(step))
        end = time.monotonic() + self._config.rollout.batch_deadline_s
        wait = Wait()
        while True:
            poll_s = max(0.0, min(_POLL_EVERY_S, end - time.monotonic()))
            share: BatchShare = ask(f"the batch of step {step}", self._store.take.remote(step, poll_s), poll_s + CALL_DEADLINE_S)
            wait.age_s += share.late_s
            wait.late_groups.update(share.waited_for)
            if streamed and share.groups:
                self._trainer.feed(batch_id, share.groups)
            if share.places == 0:
                return wait
            self._trainer.check()
            self._publisher.check()
            if not share.groups and self._require_progress(step, share, timed_out=time.monotonic() >= end):
                end = time.monotonic() + self._config.rollout.batch_deadline_s

    def _require_progress(self, step: int, share: BatchShare, *, timed_out: bool) -> bool:
        """Publish again when that is what a replaced engine waits for; fail when nothing can fill the step any more. True while
        engines are replaced on purpose: the step's deadline begins when that is over."""
        state = self._fleet_state()
        if state.fault:
            raise ResourceError(f"step {step} cannot be filled, {state.fault}")
        if state.lost:
            raise RolloutError(f"step {step} cannot be filled: {state.lost}")
        if self._serve_waiting(state):
            return False
        if state.expects_engines:
            return True
        if state.failure and not state.engines:
            raise ResourceError(f"step {step} cannot be filled, no engine is left: {state.failure}")
        if timed_out:
            waiting_for = f"groups {', '.join(map(str, share.late))} at their age limit" if share.late else "more finished groups"
            raise DeadlineError(self._who_waits(f"step {step}", waiting_for, state))
        return False

    def _fleet_state(self) -> RolloutState:
        return ask("the fleet's state", self._coordinator.state.remote())

    def _serve_waiting(self, state: RolloutState) -> bool:
        """Publish again when that is what the only engines wait for; whether they do."""
        if state.waiting_for_weights and not self._publisher.under_way:
            self._publisher.publish(state.version)
        return state.waiting_for_weights

    def _who_waits(self, who: str, what: str, state: RolloutState) -> str:
        running = ", ".join(map(str, state.running_groups))
        return (
            f"{who} waited {self._config.rollout.batch_deadline_s:.0f} s (rollout.batch_deadline_s) for {what}; "
            f"running groups: {running or 'none'}; trajectories per engine: {state.engines or 'no engine'}; "
            f"without a place: {state.queued}; longest waits: {'; '.join(state.waits) or 'none'}"
        )


def summarise_batch(
    step: int, groups: list[TrajectoryGroup], counts: GroupCounts, wait: Wait, mean_lengths: tuple[float, float]
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
        groups_retried=counts.retried,
        groups_partial=counts.partial,
        groups_dropped=counts.dropped,
    )


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return fmean(kept) if kept else 0.0


def _p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else 0.0
