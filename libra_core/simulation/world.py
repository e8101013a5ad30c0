"""One simulated run: a plan at work on a stream of trajectories, in virtual time.

The world is driven from outside in steps: `run_to` a version, look at what was measured, `apply` another plan, go on. It owns the
kernel's state; two worlds share nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from libra_core.planning.proposals import at_work
from libra_core.simulation import kernel
from libra_core.simulation.kernel.records import (
    ASKS_PLACE,
    ASKS_TURN,
    ENGINE,
    GROUP,
    NEVER,
    NOBODY,
    PACE,
    REACHED,
    RUN,
    STEP,
    TRAJECTORY,
    KernelState,
    records,
)
from libra_core.simulation.truth import Truth
from libra_core.simulation.workload.trajectories import Trajectories
from libra_core.types.plan import Plan, TrainLayout

MOST_RUNNING = 256
"""Sequences of one engine's step, unless a run says otherwise; vLLM's usual `max_num_seqs`."""
NO_CAP = 1e9
"""As `kv_fill`: everything is bound at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How a run is driven; see `RolloutConfig` for staleness, slack and KV share."""

    batch: int
    group_size: int
    staleness: int = 1
    age_slack: int = 0
    streamed: bool = False
    colocated: bool = False
    kv_fill: float = 0.7
    most_running: int = MOST_RUNNING
    chunk_tokens: int = 2048
    """Tokens that one engine step prefills at most (vLLM's `max_num_batched_tokens`)."""
    most_calls_first: bool = False
    overlap: bool = False
    """Publications overlap with training: the trainer goes on when it has sent the weights, while the engines load them."""
    stay_margin: float = 8.0
    """Trajectories a GPU by which another engine must be emptier before a turn moves; 0 never moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFailure:
    """An engine that dies and is replaced."""

    at_s: float
    engine: int
    outage_s: float


class Router(Protocol):
    """Chooses engines for a world whose plan has several kinds."""

    def choose(self, world: "World", trajectory: int) -> int:
        """An engine with room, or the trajectory's own."""
        ...

    def observe(self, world: "World", step: int) -> None:
        """Called after each step; finished trajectories may be learned from."""
        ...

    def accuracy(self) -> float:
        """Share of finished trajectories that ended in their own length class after at most one move."""
        ...


class StuckError(RuntimeError):
    """Nothing can happen any more: a fault of the simulation or an impossible pacing."""


class World:
    """Truth, trajectories, pacing and the active plan."""

    def __init__(
        self,
        truth: Truth,
        trajectories: Trajectories,
        pacing: Pacing,
        plan: Plan,
        *,
        failures: Sequence[EngineFailure] = (),
        router: Router | None = None,
    ) -> None:
        self.truth = truth
        self.trajectories = trajectories
        self.pacing = pacing
        self.plan = plan
        self.router = router
        self.transitions = 0
        self.transition_s = 0.0
        self.fleet = FleetTime()
        slots = max(plan.rollout.num_engines, plan.num_gpus)
        self.state = _state(truth, trajectories, pacing, slots, failures)
        self._pace_trainer()
        for tp in at_work(plan)[1].degrees:
            self._open(tp, 0.0)

    @property
    def version(self) -> int:
        return int(self.state.run[0].version)

    @property
    def now_s(self) -> float:
        return float(self.state.run[0].now_s)

    @property
    def steps(self) -> int:
        """How many optimizer steps the trajectories are enough for."""
        return len(self.trajectories) // self.pacing.batch

    def run_to(self, version: int) -> None:
        """Advance until the trainer stands at `version`. Raises `StuckError`."""
        self.state.pace[0].routed = int(self.router is not None)
        while True:
            why = kernel.advance_to(self.state, version)
            if why == REACHED:
                if self.router is not None:
                    self.router.observe(self, self.version)
                return
            if why in (ASKS_PLACE, ASKS_TURN) and self.router is not None:
                trajectory = int(self.state.run[0].asks)
                kernel.assign(self.state, trajectory, self.router.choose(self, trajectory))
            else:
                raise StuckError(f"nothing happens after version {self.version} at {self.now_s:.1f} s")

    def apply(self, plan: Plan, *, engine_s: float, trainer_s: float) -> None:
        """Change to `plan`: engines that both plans have go on, the others stop at once and hand their trajectories back, new
        ones serve after `engine_s`; the trainer stands still for `trainer_s`."""
        wanted = list(at_work(plan)[1].degrees)
        for e in self.alive():
            tp = int(self.state.engines[e].tp)
            if tp in wanted:
                wanted.remove(tp)
            else:
                self._close(e)
        for tp in wanted:
            self._open(tp, engine_s)
        if trainer_s > 0:
            kernel.hold_back(self.state, trainer_s)
        self.transitions += 1
        self.transition_s += max(engine_s if wanted else 0.0, trainer_s)
        self.plan = plan
        self._pace_trainer()

    def stream(self, streamed: bool) -> None:
        """From the next step on."""
        self.pacing = replace(self.pacing, streamed=streamed)
        self.state.pace[0].streamed = int(streamed)
        self._pace_trainer()

    def alive(self) -> list[int]:
        """Engine numbers, in order."""
        return [int(e) for e in np.flatnonzero(self.state.engines.alive == 1)]

    def fleet_time(self) -> "FleetTime":
        """GPU seconds of all engines so far, those that were stopped included."""
        spent = self.fleet
        for e in self.alive():
            spent = spent.plus(_time_of(self.state.engines[e], self.now_s))
        return spent

    def _open(self, tp: int, after_s: float) -> None:
        free = np.flatnonzero(self.state.engines.alive == 0)
        engine, law = self.state.engines[free[0]], self.truth.engines[tp]
        engine.a_s, engine.b_s, engine.c_s, engine.kv_tokens = law.a_s, law.b_s, law.c_s, law.kv_tokens
        engine.prefill_s, engine.prefill_pair_s = law.prefill_b_s_per_token, law.prefill_c_s_per_token2
        engine.tp = tp
        kernel.open_engine(self.state, int(free[0]), self.now_s + after_s)

    def _close(self, e: int) -> None:
        self.fleet = self.fleet.plus(_time_of(self.state.engines[e], self.now_s))
        kernel.stop_engine(self.state, e)

    def _pace_trainer(self) -> None:
        pace, trainer = self.state.pace[0], self.truth.trainer
        layout = at_work(self.plan)[0]
        tokens = float(self.trajectories.total_tokens.mean()) * self.pacing.batch
        flops = trainer.flops(layout.num_gpus, layout.tp, bubble_share(layout, tokens), batch=self.pacing.batch)
        pace.flops = flops / (trainer.streamed_time if self.pacing.streamed else 1.0)


def bubble_share(layout: TrainLayout, tokens: float) -> float:
    """1F1B: (pp-1)/(m+pp-1) with the micro-batches of a batch of `tokens`."""
    if layout.pp == 1:
        return 0.0
    micro = max(1.0, tokens / layout.dp / layout.micro_batch_tokens)
    return (layout.pp - 1) / (micro + layout.pp - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTime:
    """Where the engines' time went, in GPU seconds."""

    decode_s: float = 0.0
    prefill_s: float = 0.0
    reprefill_s: float = 0.0
    """Context that an earlier turn had computed."""
    paused_s: float = 0.0
    """For new weights, while starting, or in colocated mode for the training."""
    alive_s: float = 0.0

    @property
    def starved_s(self) -> float:
        return max(self.alive_s - self.decode_s - self.prefill_s - self.reprefill_s - self.paused_s, 0.0)

    def plus(self, other: "FleetTime", times: float = 1.0) -> "FleetTime":
        return FleetTime(
            decode_s=self.decode_s + times * other.decode_s,
            prefill_s=self.prefill_s + times * other.prefill_s,
            reprefill_s=self.reprefill_s + times * other.reprefill_s,
            paused_s=self.paused_s + times * other.paused_s,
            alive_s=self.alive_s + times * other.alive_s,
        )


def _time_of(engine: np.record, now_s: float) -> FleetTime:
    """What was charged beforehand, for a prefill or pause that is still under way, does not count yet."""
    tp = float(engine["tp"])
    ahead = max(float(engine["clock_s"]) - now_s, 0.0)
    pause_left = min(max(float(engine["pause_end_s"]) - now_s, 0.0), float(engine["pause_s"]), ahead)
    again_left = min(ahead - pause_left, float(engine["reprefilled_s"]))
    return FleetTime(
        decode_s=tp * engine["decode_s"],
        prefill_s=tp * (engine["prefilled_s"] - (ahead - pause_left - again_left)),
        reprefill_s=tp * (engine["reprefilled_s"] - again_left),
        paused_s=tp * (engine["paused_s"] - pause_left),
        alive_s=tp * (now_s - engine["since_s"]),
    )


def _state(truth: Truth, work: Trajectories, pacing: Pacing, slots: int, failures: Sequence[EngineFailure]) -> KernelState:
    in_flight = (pacing.staleness + 2) * pacing.batch + 1
    outages = sorted((failure.at_s, failure.engine, failure.outage_s) for failure in failures)
    state = KernelState(
        generated=work.generated,
        returned=work.returned,
        tool_s=work.tool_s,
        trajectories=_trajectories(truth, work),
        groups=records(GROUP, len(work) // pacing.group_size),
        engines=records(ENGINE, slots),
        pace=records(PACE, 1),
        run=records(RUN, 1),
        steps=records(STEP, len(work) // pacing.batch + 1),
        upcoming=np.full(slots, NEVER),
        running=np.zeros((slots, pacing.most_running), dtype=np.int32),
        finishes=np.full((slots, pacing.most_running), NEVER),
        tool_ends=np.zeros(in_flight),
        tool_owners=np.zeros(in_flight, dtype=np.int64),
        displaced=np.zeros(in_flight, dtype=np.int64),
        failures=np.array(outages, dtype=np.float64).reshape(len(outages), 3),
    )
    state.groups.version[:] = state.groups.step[:] = -1
    _set_pace(state, truth, pacing)
    run = state.run[0]
    run.check, run.train_end_s, run.age_since_s = 1, NEVER, NEVER
    run.mean_context = float(work.total_tokens[: pacing.batch].mean())
    return state


def _trajectories(truth: Truth, work: Trajectories) -> np.recarray:
    rows = records(TRAJECTORY, len(work))
    rows.group[:] = np.arange(len(work)) // work.group_size
    rows.first_turn[:], rows.turns[:], rows.arriving[:] = work.first_turn, work.turns, work.prompt_tokens
    rows.engine[:] = rows.older[:] = rows.newer[:] = rows.behind[:] = NOBODY
    rows.version[:] = -1
    linear, pairs = truth.trainer.flop_coefficients()
    rows.tokens[:] = work.total_tokens
    rows.work[:] = linear * (rows.tokens + truth.trainer.fixed_tokens) + pairs * rows.tokens**2
    return rows


def _set_pace(state: KernelState, truth: Truth, pacing: Pacing) -> None:
    pace, publication = state.pace[0], truth.publication
    for name in ("batch", "group_size", "staleness", "age_slack", "kv_fill", "most_running", "chunk_tokens", "stay_margin"):
        pace[name] = getattr(pacing, name)
    pace.streamed, pace.colocated = int(pacing.streamed), int(pacing.colocated)
    pace.most_calls_first = int(pacing.most_calls_first)
    pace.recompute_kv = int(publication.recompute_kv)
    pace.fixed_s = truth.trainer.fixed_s
    pace.publication_s, pace.pause_s = publication.keeps_trainer_s(pacing.overlap), publication.engines_pause_s
    pace.published_s = publication.trainer_waits_s
    pace.switch_s = truth.colocated_switch_s
