"""Small facts that tasks return: counts, seconds, means. Never token data."""

from dataclasses import asdict, dataclass, field

from libra_core.types.forecast import ForecastCheck
from libra_core.types.ids import BatchId, EngineId, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One look at an engine, from vLLM's own stat logger; no engine round trip."""

    engine_id: EngineId
    running: int
    waiting: int
    kv_usage: float
    """Share of the KV cache in use, 0..1."""
    policy_version: PolicyVersion
    generated_tokens: int
    """Since start."""
    prompt_tokens: int
    cached_prompt_tokens: int
    preemptions: int
    busy_s: float
    """Seconds since start during which at least one request was unfinished and the engine was not paused."""
    paused_s: float = 0.0
    """Seconds since start during which it was held for a swap of weights, in colocated mode also for the training."""
    prefill_s: float = 0.0
    """Of these, an estimate of what went into prompts: each engine step's time, split by the tokens it computed."""
    decode_steps: int = 0
    """Engine steps since start that sampled at least one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """One batch taken from the store.

    32 groups of 8, one sample lost: `trajectories` 255, `groups` 32. Tokens are sums over trajectories: of `prompt_tokens`,
    `generated_tokens` and `tool_tokens` together a trajectory has `longest_tokens` at most, and 512² of `squared_tokens` if it
    has 512. Of `staleness_histogram` {0: 200, 1: 55} each trajectory is in one.
    """

    step: int
    batch_id: BatchId
    policy_version: PolicyVersion
    """Version of the trainer's weights that this batch updates."""
    trajectories: int
    groups: int
    prompt_tokens: int
    generated_tokens: int
    tool_tokens: int
    longest_tokens: int
    """Of one trajectory: prompt, generated and tool tokens together."""
    longest_generated_tokens: int
    squared_tokens: int
    """Σ L² over trajectories of all their tokens; attention grows with it."""
    longest_tool_s: float
    """Of one trajectory: seconds in all its tools, waits for places included."""
    mean_turns: float
    truncated: int
    """Trajectories that ended by length instead of by the stop token."""
    tool_calls: int
    tool_errors: int
    tool_timeouts: int = 0
    tool_malformed: int = 0
    tool_mean_s: float = 0.0
    """Per call, without the wait for a place."""
    tool_p90_s: float = 0.0
    tool_queue_mean_s: float = 0.0
    """Per call, for a place on the host."""
    tool_queue_max_s: float = 0.0
    staleness_mean: float
    """Versions between the oldest sampled token and the update, averaged over trajectories."""
    staleness_max: int
    staleness_histogram: dict[int, int]
    """Trajectories by versions between their oldest sampled token and the update."""
    waited_groups: int
    """Groups at their age limit that the step waited for although enough others were ready."""
    finished_tokens_mean: float
    """Generated tokens per trajectory over all that have finished since the start, trained or not."""
    trained_tokens_mean: float
    """The same over those that were trained: lower, where a long tail is delayed or dropped."""
    waited_s: float
    """How long the step waited for the batch."""
    waited_age_s: float
    """Of it, the time in which enough groups were ready but one at its age limit was not."""
    context_tokens: int
    """Prompt tokens of all turns."""
    cached_tokens: int
    """Of these, served from a prefix cache."""
    reprefilled_tokens: int
    """Of these, computed again although an earlier turn had computed them."""
    generation_s: float
    """From the first request of the batch to its last token (T_rollout of this batch, tools included)."""
    groups_retried: int = 0
    groups_partial: int = 0
    groups_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReport:
    """Scores of one batch."""

    batch_id: BatchId
    mean: float
    std: float
    groups_with_signal: float
    """Share of groups whose samples do not all have the same reward."""
    failed: int
    """Trajectories lost to infrastructure."""
    masked: int = 0
    """Cut at the length limit and left without a reward (`rollout.on_length_limit = mask`)."""
    by_kind: dict[str, float] = field(default_factory=dict)
    """Mean reward per prompt kind."""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryText:
    """A trajectory as people read it: one row of a table in MLflow."""

    trajectory: str
    kind: str
    reward: float | None
    advantage: float | None
    turns: int
    generated_tokens: int
    engines: str
    text: str
    answers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """One optimizer step."""

    step: int
    policy_version: PolicyVersion
    """After the step."""
    loss: float
    grad_norm: float
    entropy: float
    kl: float
    """Mean of k3 between sampler and trainer (log-prob mismatch, not a penalty)."""
    clip_fraction: float
    dual_clip_fraction: float
    """Of the loss tokens: of negative advantage, with a ratio beyond `training.loss.clip_dual`."""
    importance_mean: float
    importance_max: float
    learning_rate: float
    tokens: int
    """Tokens that entered the forward pass, over all data-parallel ranks."""
    loss_tokens: int
    micro_batches: int
    logprob_s: float
    forward_backward_s: float
    optimizer_s: float
    duration_s: float
    started_s: float
    """Unix time."""
    skipped: bool = False
    """True when the batch held no learning signal, so that the weights did not change."""
    hybrid_replicas: int = 0
    """Hybrid replicas whose gradient is in the step."""
    hybrid_tokens: int = 0
    """Of `tokens`, those that they trained."""
    lost_sequences: int = 0
    """Sequences that the core trained because a hybrid replica was lost with them."""
    hybrid_wait_s: float = 0.0
    """How long the step waited for hybrid replicas."""
    hybrid_stall_s: float = 0.0
    """Of the core's training thread, in copies for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePublication:
    """One engine's part of a weight publication."""

    engine_id: EngineId
    pause_s: float
    load_s: float
    resume_s: float

    @property
    def paused_s(self) -> float:
        """How long the engine generated nothing."""
        return self.pause_s + self.load_s + self.resume_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationReport:
    """New weights on every engine."""

    policy_version: PolicyVersion
    transfer_s: float
    """Export from the trainer into the medium the engines read."""
    total_s: float
    bytes: int
    engines: tuple[EnginePublication, ...]
    canary_max_error: float
    """Largest absolute log-prob difference between engine and trainer on the canary prompt; nan when switched off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Where an iteration's time went: the trainer's parts add up to T_iter, and so do the fleet's."""

    trainer_busy_s: float
    """Forward, backward and optimizer."""
    trainer_waits_groups_s: float
    """For groups that are still being generated."""
    trainer_waits_age_s: float
    """Enough groups were ready, but one at its age limit was not."""
    trainer_waits_publication_s: float
    """Its own part of publications, and what was waited for the engines to answer."""
    trainer_other_s: float
    """Orchestration: calls, scoring, logging, checkpoints."""
    fleet_busy_s: float
    """Mean over the engines: generating."""
    fleet_reprefill_s: float
    """Computing context again that an earlier turn had computed."""
    fleet_paused_s: float
    """Held for a swap of weights."""
    fleet_starved_s: float
    """No request at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingReport:
    """What the router did since the last report. Rates are over the trajectories that ended lately; nan without any."""

    decisions: int
    decision_p50_us: float
    decision_p99_us: float
    moves: int
    """Trajectories that went on on another engine than the one that held their context."""
    moved_tokens: int
    """Context that the target lacked, unless it was computed ahead."""
    moved_fraction: float
    """Of all tokens of the trajectories that ended."""
    moved_first_token_s: float
    """From request to first token of the turns that began with a move, summed."""
    handed_over_tokens: int
    """Context that targets loaded from the engine before, for moves made or foreseen."""
    handover_s: float
    """From asking the engine before to the target's first token, over the moves that loaded something, summed."""
    reprefilled_tokens: int
    """Context that targets computed."""
    reprefill_s: float
    """Until the target's first token, over the moves that loaded nothing, summed."""
    ahead: int
    """Moves foreseen at a tool's start and computed ahead on the target."""
    ahead_s: float
    """Prefill that ran while tools ran, summed."""
    accuracy: float
    """Share that ended in the bucket of its total length after at most one move."""
    tail_recall: float
    """Share of the longest tenth that ended in the last bucket."""
    tree_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWork:
    """What the engines did in an iteration, summed over them."""

    decode_s: float
    """Busy, less what went into prompts."""
    prefill_s: float
    steps: int
    """That sampled at least one token."""
    tokens: int
    """Sampled."""

    @property
    def batch(self) -> float:
        """Sequences that a step decoded at once."""
        return self.tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryAudit:
    """What became of the trajectories of all finished steps, counted by id."""

    taken: int = 0
    trained: int = 0
    """Their gradient is in the weights."""
    without_signal: int = 0
    """Of groups that scored alike, or cut at the length limit and masked: there is nothing to learn from them."""
    failed: int = 0
    """Lost to infrastructure before they were scored."""
    lost: int = 0
    """Given to the trainer, but in no gradient. None, unless something is wrong."""
    doubled: int = 0
    """In a gradient more than once. None, unless something is wrong."""

    def including(self, **counts: int) -> "TrajectoryAudit":
        return TrajectoryAudit(**{name: count + counts.get(name, 0) for name, count in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReport:
    """One GRPO iteration, as it is logged.

    T_iter 10 s, of which the fleet had work for 10 and the trainer for 6, 5 of these while the fleet worked too: overlap 0.83.
    """

    step: int
    rollout: RolloutReport
    reward: RewardReport
    update: UpdateReport
    publication: PublicationReport
    """The newest that had ended by then: of the step before, where publications overlap with training."""
    t_iter_s: float
    t_rollout_s: float
    """Seconds of this iteration during which the fleet had unfinished requests."""
    t_train_s: float
    """Seconds of this iteration during which the trainer worked (update and export)."""
    overlap_fraction: float
    """Share of T_train during which the fleet worked too, 0..1."""
    tokens_per_s: float
    """Generated tokens of the batch per second of T_iter."""
    breakdown: TimeBreakdown
    preemptions: int
    """Of all engines in this iteration, those for weight swaps left out."""
    kv_usage_max: float
    """Of the fullest engine at the end of the iteration."""
    queued: int
    """Trajectories without a place on an engine at the end of the iteration."""
    engines: EngineWork | None = None
    """None in worlds without engines."""
    forecast: ForecastCheck | None = None
    """Made before the iteration; None without a law, and in the first iteration of a process."""
    routing: RoutingReport | None = None
    """None in worlds without a router of their own."""
