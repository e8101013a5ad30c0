"""A plan together with what is expected of it."""

from dataclasses import dataclass
from enum import StrEnum

from libra_core.types.plan import Plan


class Mode(StrEnum):
    ASYNCHRONOUS = "asynchronous"
    COLOCATED = "colocated"


class Term(StrEnum):
    """What can set the iteration time (docs/planner.md#what-is-minimised)."""

    TRAINER = "A"
    FLEET = "B"
    SLOWEST_TRAJECTORY = "C"
    GROUP_LATENCY = "D"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Seconds that each term alone asks for, at the common fixed point."""

    trainer_s: float
    fleet_s: float
    slowest_s: float
    group_s: float

    @property
    def binding(self) -> Term:
        """The largest; a tie goes to the earlier letter."""
        values = (self.trainer_s, self.fleet_s, self.slowest_s, self.group_s)
        return tuple(Term)[values.index(max(values))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One iteration in the steady state."""

    t_iter_s: float
    """The fixed point times its measured bias."""
    t_train_s: float
    t_rollout_s: float
    """The fleet's time for one batch's work, without waiting for stragglers (term B)."""
    slowest_trajectory_s: float
    """Expected latency of the slowest of a batch."""
    tokens_per_s: float
    """Generated tokens that are trained on, per second."""
    terms: Terms
    publication_s: float
    engine_batch: float
    """Sequences that decode at once on one engine (of the largest degree in a mixed fleet)."""
    train_bytes_per_gpu: float
    rollout_bytes_per_gpu: float
    """Weights and KV cache that may be promised, of the fullest engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForecast:
    """One iteration before it runs; nan where no law or no measurement is at hand."""

    t_train_s: float
    """Log-prob pass, forward, backward and optimizer; without the export of the weights."""
    t_rollout_s: float
    """Fleet's time for one batch whose trajectories start together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastCheck:
    """What was forecast of an iteration, and how far such forecasts have been off so far."""

    forecast: StepForecast
    t_train_error: float
    """Running mean of |forecast - measured| / measured, recent iterations counting more; nan before the first comparison."""
    t_rollout_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan, how it is run, and its forecast."""

    mode: Mode
    streamed: bool
    plan: Plan
    slots_per_engine: tuple[tuple[int, int], ...]
    """`((tp, trajectories that one engine may hold), …)`."""
    forecast: Forecast

    @property
    def num_gpus(self) -> int:
        train, rollout = self.plan.train.num_gpus, self.plan.rollout.num_gpus
        return max(train, rollout) if self.mode is Mode.COLOCATED else train + rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """One change that the binding term would answer to, and the iteration time after it."""

    change: str
    t_iter_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Branches of the search that one rule cut, with one of them as the example."""

    rule: str
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGroup:
    """GPUs of one node that belong together: one TP group."""

    role: str
    """`train` or `engine`."""
    index: int
    """TP group number of the trainer, or engine number."""
    node: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The planner's answer."""

    best: Candidate
    runner_ups: tuple[Candidate, ...]
    relaxations: tuple[Relaxation, ...]
    placement: tuple[GpuGroup, ...]
    pruned: tuple[Pruned, ...]
    notes: tuple[str, ...]
    num_candidates: int
    against: tuple[str, ...] = ()
    """Why this version cannot run the best plan; empty but where it can run none at all."""
