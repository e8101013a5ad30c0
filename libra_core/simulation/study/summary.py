"""What is kept of one run of one system."""

from dataclasses import dataclass

import numpy as np

from libra_core.simulation.world import FleetTime, World

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSummary:
    """Means over the counted steps; shares are of GPU time."""

    tokens_per_s: float
    """Generated tokens that were trained on, per second."""
    t_iter_s: float
    t_train_s: float
    trainer_busy: float
    trainer_waits_groups: float
    """Share of the trainer's time, as the next two."""
    trainer_waits_age: float
    """Of it, while enough groups were ready but one at its age limit was not."""
    trainer_blocked: float
    """For publications, switches of sides and transitions."""
    fleet_decode: float
    """Share of the engines' GPU time, as the next four."""
    fleet_prefill: float
    fleet_reprefill: float
    fleet_paused: float
    fleet_starved: float
    idle: float
    """Share of all GPU time in which nothing useful was done: waits, pauses, blocks, starvation."""
    wasted: float
    """Share of all GPU time that computed something again."""
    steps_per_hour: float
    staleness_mean: float
    staleness_max: float
    slowest_s: float
    """Mean over steps of the slowest trajectory's latency."""
    moved_tokens: float
    """Share of all tokens that were prefilled again on another engine."""
    preemptions: float
    transitions: float
    transition_s: float
    routing_accuracy: float
    """Share of trajectories that ended on the engines of their length class after at most one move; nan on equal engines."""
    train_gpus: float
    """Mean over the counted steps, as the next."""
    rollout_tp: float
    events: float
    simulated_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One step, for figures; seconds."""

    step: int
    t_iter_s: float
    t_train_s: float
    slowest_s: float
    train_gpus: int
    rollout_tp: int
    generated_per_trajectory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One step in detail, for a Gantt figure; seconds since the step before it ended."""

    trajectories: tuple[tuple[float, float], ...]
    """First token and end of each trajectory that the step trained."""
    train_s: tuple[float, float]


class Meter:
    """Watches a world from the first counted step on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._first = world.version
        self._since_s = world.now_s
        self._fleet = world.fleet_time()
        self._moved = float(world.state.run[0].moved_tokens)
        self._train_gpu_s = 0.0
        self._plans: list[tuple[int, int]] = []
        self._last_s = world.now_s

    def after_step(self) -> None:
        plan = self._world.plan
        seconds = self._world.now_s - self._last_s
        self._last_s = self._world.now_s
        gpus = plan.train.num_gpus
        self._train_gpu_s += seconds * gpus
        self._plans.append((gpus, max(plan.rollout.degrees)))

    def views(self) -> list[StepView]:
        steps = self._world.state.steps
        ends = steps.ended_s
        return [
            StepView(
                step=v,
                t_iter_s=float(ends[v] - ends[v - 1]) if v else float(ends[v]),
                t_train_s=float(steps.train_s[v]),
                slowest_s=float(steps.longest_s[v]),
                train_gpus=gpus,
                rollout_tp=tp,
                generated_per_trajectory=float(steps.generated[v] / max(steps.trajectories[v], 1)),
            )
            for v, (gpus, tp) in enumerate(self._plans, start=self._first)
        ]

    def picture(self) -> Picture:
        """The middle one of the counted steps."""
        state = self._world.state
        step = (self._first + self._world.version) // 2
        zero = float(state.steps.ended_s[step - 1])
        rows = state.trajectories[np.repeat(state.groups.step == step, self._world.pacing.group_size)]
        spans = sorted(zip((rows.started_s - zero).tolist(), (rows.finished_s - zero).tolist(), strict=True))
        trained = (float(state.steps.began_s[step]) - zero, float(state.steps.ended_s[step]) - zero)
        return Picture(trajectories=tuple(spans), train_s=trained)

    def summary(self, gpus: int) -> SimulatedSummary:
        world = self._world
        steps = world.state.steps[self._first : world.version]
        seconds = world.now_s - self._since_s
        fleet = world.fleet_time().plus(self._fleet, -1.0)
        run = world.state.run[0]
        colocated = world.pacing.colocated
        trajectories = max(float(steps.trajectories.sum()), 1.0)
        train_gpu_s = gpus * float(steps.train_s.sum()) if colocated else self._train_gpu_s * float(steps.train_s.sum()) / seconds
        useful = fleet.decode_s + fleet.prefill_s + train_gpu_s
        wasted = fleet.reprefill_s
        return SimulatedSummary(
            tokens_per_s=float(steps.generated.sum()) / seconds,
            t_iter_s=seconds / len(steps),
            t_train_s=float(steps.train_s.mean()),
            trainer_busy=float(steps.train_s.sum()) / seconds,
            trainer_waits_groups=float((steps.waited_s - steps.waited_age_s).sum()) / seconds,
            trainer_waits_age=float(steps.waited_age_s.sum()) / seconds,
            trainer_blocked=float(steps.blocked_s.sum()) / seconds,
            **_fleet_shares(fleet),
            idle=1.0 - (useful + wasted) / (gpus * seconds),
            wasted=wasted / (gpus * seconds),
            steps_per_hour=len(steps) / seconds * _HOUR,
            staleness_mean=float(steps.staleness.sum()) / trajectories,
            staleness_max=float(steps.oldest_staleness.max()),
            slowest_s=float(steps.longest_s.mean()),
            moved_tokens=(float(run.moved_tokens) - self._moved) / max(float(steps.tokens.sum()), 1.0),
            preemptions=float(run.preemptions),
            transitions=float(world.transitions),
            transition_s=world.transition_s,
            routing_accuracy=_routing_accuracy(world),
            train_gpus=float(np.mean([gpus for gpus, _ in self._plans])),
            rollout_tp=float(np.mean([tp for _, tp in self._plans])),
            events=float(run.events),
            simulated_tokens=float(world.state.trajectories.generated.sum()),
        )


def _fleet_shares(fleet: FleetTime) -> dict[str, float]:
    whole = max(fleet.alive_s, 1e-9)
    return {
        "fleet_decode": fleet.decode_s / whole,
        "fleet_prefill": fleet.prefill_s / whole,
        "fleet_reprefill": fleet.reprefill_s / whole,
        "fleet_paused": fleet.paused_s / whole,
        "fleet_starved": fleet.starved_s / whole,
    }


def _routing_accuracy(world: World) -> float:
    """Routers work on mixed fleets only."""
    return float("nan") if world.router is None else world.router.accuracy()
