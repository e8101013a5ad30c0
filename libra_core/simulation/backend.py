"""The ports of a session over a simulated world: `libra train` with `backend.kind = simulated` runs the same flows and tasks.

An iteration passes in virtual time when its batch is taken; the later calls of the iteration report what was measured then.
Nothing learns: rewards, losses and log-probs are 0.
"""

import secrets
from collections import Counter
from pathlib import Path

import numpy as np

from libra_core.config import LibraConfig, plan_of
from libra_core.errors import ConfigError
from libra_core.planning.history_file import read_history
from libra_core.simulation.truth import Truth, load_truth
from libra_core.simulation.workload.generate import STATUSES, generate, levels
from libra_core.simulation.workload.laws import load_law
from libra_core.simulation.workload.trajectories import Trajectories, resampled
from libra_core.simulation.world import NO_CAP, FleetTime, Pacing, World
from libra_core.types.ids import BatchId, EngineId, PolicyVersion
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan
from libra_core.types.reports import (
    EngineStats,
    IterationReport,
    PublicationReport,
    RewardReport,
    RolloutReport,
    TimeBreakdown,
    TrajectoryAudit,
    TrajectoryText,
    UpdateReport,
)
from libra_core.types.session import SessionRef
from libra_core.types.trace import TraceSpan


class SimulatedSession:
    """Owns the world; it is rollout pool, reward scorer, trainer and controller at once.

    It keeps the plan that it starts with: its configuration refuses hybrid replicas and re-partition, and its `planner` is None.
    Moves of a simulated world are the study's (`StudyReplanner`, through the same `ReplanLoop`).
    """

    def __init__(self, config: LibraConfig, run_dir: Path) -> None:
        """Raises `ConfigError` for what cannot be simulated."""
        _refuse_what_would_not_act(config)
        run_id = f"{run_dir.name}-{secrets.token_hex(3)}"
        self.ref = SessionRef(run_id=run_id, run_dir=str(run_dir), ray_address="none", namespace=run_id)
        self._config = config
        self._world = _world(config)
        self._before = FleetTime()
        self._before_s = 0.0
        self._preemptions = 0
        self._reprefilled_tokens = 0.0
        self._held_tokens, self._arriving_tokens = self._world.trajectories.contexts()

    @property
    def rollout(self) -> "SimulatedSession":
        return self

    @property
    def reward(self) -> "SimulatedSession":
        return self

    @property
    def trainer(self) -> "SimulatedTrainer":
        return SimulatedTrainer(self)

    @property
    def controller(self) -> "SimulatedSession":
        return self

    @property
    def connection(self) -> "SimulatedSession":
        return self

    def close(self) -> None:
        """Nothing runs outside this process."""

    @property
    def planner(self) -> None:
        """Nothing moves in a simulated session; `libra compare` studies controllers."""

    def audit(self) -> TrajectoryAudit:
        """Every trajectory of a simulated step is trained."""
        taken = self._world.version * self._config.rollout.groups_per_step * self._config.rollout.group_size
        return TrajectoryAudit(taken=taken, trained=taken)

    def plan(self) -> Plan:
        return self._world.plan

    def take_batch(self, step: int) -> RolloutReport:
        """Let the step happen. What was computed again counts in the step when it was, whichever step trains it."""
        if self._world.version == step:
            self._world.run_to(step + 1)
        rows, work = self._trained(step), self._world.trajectories
        turns = np.concatenate([np.arange(work.first_turn[i], work.first_turn[i] + work.turns[i]) for i in rows])
        states = self._world.state.trajectories[rows]
        record = self._world.state.steps[step]
        reprefilled = float(self._world.state.run[0].reprefilled_tokens) - self._reprefilled_tokens
        held = float(self._held_tokens[turns].sum())
        ages = Counter((step - states.version).tolist())
        return RolloutReport(
            step=step,
            batch_id=BatchId(f"step-{step:06d}"),
            policy_version=PolicyVersion(step),
            trajectories=len(rows),
            groups=len(rows) // work.group_size,
            prompt_tokens=int(work.prompt_tokens[rows].sum()),
            generated_tokens=int(work.generated[turns].sum()),
            tool_tokens=int(work.returned[turns].sum()),
            longest_tokens=int(states.tokens.max()),
            longest_generated_tokens=int(states.generated.max()),
            squared_tokens=int((states.tokens**2).sum()),
            longest_tool_s=float(work.total_tool_s[rows].max()),
            mean_turns=float(work.turns[rows].mean()),
            truncated=0,
            tool_calls=int(turns.size - len(rows)),
            tool_errors=int((work.status[turns] != STATUSES.index("ok")).sum()),
            staleness_mean=float((step - states.version).mean()),
            staleness_max=int((step - states.version).max()),
            staleness_histogram=dict(sorted(ages.items())),
            waited_groups=0,
            finished_tokens_mean=float(states.generated.mean()),
            trained_tokens_mean=float(states.generated.mean()),
            waited_s=float(record.waited_s),
            waited_age_s=float(record.waited_age_s),
            context_tokens=int(held + self._arriving_tokens[turns].sum()),
            cached_tokens=int(max(held - reprefilled, 0.0)),
            reprefilled_tokens=int(reprefilled),
            generation_s=float(states.finished_s.max() - states.started_s.min()),
        )

    def score(self, batch_id: BatchId) -> RewardReport:
        return RewardReport(batch_id=batch_id, mean=0.0, std=0.0, groups_with_signal=0.0, failed=0)

    def publish(self, version: PolicyVersion) -> PublicationReport:
        publication = self._world.truth.publication
        return PublicationReport(
            policy_version=version,
            transfer_s=publication.trainer_waits_s,
            total_s=publication.trainer_waits_s,
            bytes=0,
            engines=(),
            canary_max_error=0.0,
        )

    def begin_publication(self, version: PolicyVersion) -> PublicationReport:
        return self.publish(version)

    def finish_publication(self) -> None:
        """The next step happens after it."""

    def stats(self) -> tuple[EngineStats, ...]:
        engines = self._world.state.engines
        return tuple(
            EngineStats(
                engine_id=EngineId(f"engine-{e}"),
                running=int(engines[e].running),
                waiting=int(engines[e].bound - engines[e].running),
                kv_usage=float(engines[e].context / engines[e].kv_tokens),
                policy_version=PolicyVersion(self._world.version),
                generated_tokens=0,
                prompt_tokens=0,
                cached_prompt_tokens=0,
                preemptions=0,
                busy_s=float(engines[e].decode_s + engines[e].prefilled_s + engines[e].reprefilled_s),
                paused_s=float(engines[e].paused_s),
            )
            for e in self._world.alive()
        )

    def iteration_report(
        self, step: int, rollout: RolloutReport, reward: RewardReport, update: UpdateReport, publication: PublicationReport
    ) -> IterationReport:
        record, run = self._world.state.steps[step], self._world.state.run[0]
        t_iter = float(record.ended_s) - self._before_s
        breakdown = self._breakdown(step, t_iter)
        preemptions = int(run.preemptions) - self._preemptions
        self._before_s, self._preemptions = float(record.ended_s), int(run.preemptions)
        self._reprefilled_tokens = float(run.reprefilled_tokens)
        return IterationReport(
            step=step,
            rollout=rollout,
            reward=reward,
            update=update,
            publication=publication,
            t_iter_s=t_iter,
            t_rollout_s=t_iter - breakdown.fleet_starved_s - breakdown.fleet_paused_s,
            t_train_s=float(record.train_s),
            overlap_fraction=0.0 if self._world.pacing.colocated else 1.0 - breakdown.fleet_starved_s / t_iter,
            tokens_per_s=rollout.generated_tokens / t_iter,
            breakdown=breakdown,
            preemptions=preemptions,
            kv_usage_max=max((engine.kv_usage for engine in self.stats()), default=0.0),
            queued=int(run.issued - run.unplaced + run.displaced),
        )

    def sample_trajectories(self, batch_id: BatchId, count: int) -> list[TrajectoryText]:
        """There is no text."""
        return []

    def lengths(self, batch_id: BatchId) -> list[LengthRecord]:
        step = int(batch_id.removeprefix("step-"))
        return [self._world.trajectories.record(i, step) for i in self._trained(step)]

    def spans(self, since_s: float) -> list[TraceSpan]:
        return []

    def evaluate_heldout(self) -> dict[str, float]:
        return {}

    def update_report(self, step: int) -> UpdateReport:
        """What the trainer did for this step; it has happened already."""
        record = self._world.state.steps[step]
        seconds = float(record.train_s)
        return UpdateReport(
            step=step,
            policy_version=PolicyVersion(step + 1),
            loss=0.0,
            grad_norm=0.0,
            entropy=0.0,
            kl=0.0,
            clip_fraction=0.0,
            dual_clip_fraction=0.0,
            importance_mean=1.0,
            importance_max=1.0,
            learning_rate=0.0,
            tokens=int(record.tokens),
            loss_tokens=int(record.generated),
            micro_batches=0,
            logprob_s=0.0,
            forward_backward_s=max(seconds - self._world.truth.trainer.fixed_s, 0.0),
            optimizer_s=self._world.truth.trainer.fixed_s,
            duration_s=seconds,
            started_s=float(record.began_s),
        )

    def version(self) -> int:
        return self._world.version

    def _breakdown(self, step: int, t_iter_s: float) -> TimeBreakdown:
        """Virtual seconds; the fleet's parts are means over GPUs."""
        record = self._world.state.steps[step]
        fleet = self._world.fleet_time()
        spent = fleet.plus(self._before, -1.0)
        self._before = fleet
        scale = t_iter_s / max(spent.alive_s, 1e-9)
        return TimeBreakdown(
            trainer_busy_s=float(record.train_s),
            trainer_waits_groups_s=float(record.waited_s - record.waited_age_s),
            trainer_waits_age_s=float(record.waited_age_s),
            trainer_waits_publication_s=float(record.blocked_s),
            trainer_other_s=0.0,
            fleet_busy_s=scale * (spent.decode_s + spent.prefill_s),
            fleet_reprefill_s=scale * spent.reprefill_s,
            fleet_paused_s=scale * spent.paused_s,
            fleet_starved_s=scale * spent.starved_s,
        )

    def _trained(self, step: int) -> list[int]:
        groups = np.flatnonzero(self._world.state.groups.step == step)
        size = self._world.trajectories.group_size
        return [int(g) * size + place for g in groups for place in range(size)]


class SimulatedTrainer:
    """The trainer's port; its `update` differs from the pool's methods only in name."""

    def __init__(self, session: SimulatedSession) -> None:
        self._session = session

    def update(self, batch_id: BatchId, expected_version: PolicyVersion) -> UpdateReport:
        return self._session.update_report(int(batch_id.removeprefix("step-")))

    def save(self, step: int) -> str:
        """Nothing is worth keeping: the same seed gives the same run."""
        return self._session.ref.run_dir

    def version(self) -> int:
        return self._session.version()


def check_simulated(config: LibraConfig) -> str:
    """Which tables are used; raises `ConfigError` for what cannot be simulated, or read."""
    _refuse_what_would_not_act(config)
    _truth(config)
    simulation = config.simulation
    if simulation.history is not None:
        read_history(Path(simulation.history))
    else:
        load_law(simulation.workload)
    return f"{simulation.truth}, {simulation.history or simulation.workload}"


def _refuse_what_would_not_act(config: LibraConfig) -> None:
    """On engines of one degree every routing policy comes to the kernel's own least-loaded rule."""
    if config.run.resume is not None:
        raise ConfigError(f"run.resume = {config.run.resume}: a simulated run has no checkpoint; start it anew, it takes seconds")
    rollout, policy = config.rollout, config.routing.policy
    if rollout.queue_order != "fifo":
        raise ConfigError(f"rollout.queue_order = {rollout.queue_order} is not simulated; set it to fifo")
    if policy != "least_loaded" and len({group.tp for group in rollout.engines}) > 1:
        raise ConfigError(
            f"routing.policy = {policy} is not simulated by libra train; set least_loaded, or compare routers with libra compare"
        )


def _truth(config: LibraConfig) -> Truth:
    truth = load_truth(config.simulation.truth)
    unknown = sorted({group.tp for group in config.rollout.engines} - set(truth.engines))
    if unknown:
        raise ConfigError(
            f"rollout.engines: {config.simulation.truth} has no engine of tp {unknown[0]}; it has {sorted(truth.engines)}"
        )
    return truth


def _world(config: LibraConfig) -> World:
    return World(_truth(config), _work(config), pacing_of(config), plan_of(config))


def pacing_of(config: LibraConfig) -> Pacing:
    """How a run with this configuration is driven."""
    rollout = config.rollout
    return Pacing(
        batch=rollout.groups_per_step * rollout.group_size,
        group_size=rollout.group_size,
        staleness=rollout.staleness,
        age_slack=rollout.age_slack,
        streamed=config.streamed,
        colocated=rollout.mode == "colocated",
        kv_fill=NO_CAP if rollout.kv_fill is None else rollout.kv_fill,
        most_running=rollout.max_num_seqs,
        chunk_tokens=config.simulation.chunk_tokens,
        overlap=config.publications_overlap,
    )


def _work(config: LibraConfig) -> Trajectories:
    """Enough for every step and for what is under way at the end."""
    rollout, simulation = config.rollout, config.simulation
    steps = config.training.steps + rollout.staleness + 1
    if simulation.history is not None:
        count = steps * rollout.groups_per_step * rollout.group_size
        return resampled(read_history(Path(simulation.history)), count, rollout.group_size, config.seed)
    law = load_law(simulation.workload)
    return generate(
        law,
        levels(law.drift, steps),
        groups_per_step=rollout.groups_per_step,
        group_size=rollout.group_size,
        seed=config.seed,
    )
