"""How one plan becomes another: ordered actions, each of which can be repeated and undone."""

from dataclasses import dataclass
from enum import StrEnum

from libra_core.types.plan import Plan, TrainLayout


class Tier(StrEnum):
    """Kinds of move, cheapest first; costs are measured per kind."""

    FLIP = "flip"
    """Hybrid replicas change sides; nothing else moves."""
    REPARTITION = "repartition"
    """Engines of the core rollout pool are replaced by others."""
    RELAYOUT = "relayout"
    """Another core training layout, through checkpoint and restart."""


class Verb(StrEnum):
    DRAIN_ENGINE = "drain engine"
    ADMIT_ENGINE = "admit engine"
    """With the newest weights."""
    STOP_ENGINE = "stop engine"
    START_ENGINE = "start engine"
    STOP_REPLICA = "stop replica"
    START_REPLICA = "start replica"
    JOIN = "join training"
    LEAVE = "leave training"
    HOLD_TRAINER = "hold trainer"
    """At a step boundary, with its state saved."""
    RELEASE_TRAINER = "release trainer"
    STOP_TRAINER = "stop trainer"
    START_TRAINER = "start trainer"
    """Holding the newest saved state."""


_PAIRS = (
    (Verb.DRAIN_ENGINE, Verb.ADMIT_ENGINE),
    (Verb.STOP_ENGINE, Verb.START_ENGINE),
    (Verb.START_REPLICA, Verb.STOP_REPLICA),
    (Verb.JOIN, Verb.LEAVE),
    (Verb.HOLD_TRAINER, Verb.RELEASE_TRAINER),
    (Verb.STOP_TRAINER, Verb.START_TRAINER),
)
_INVERSE = dict(_PAIRS) | {inverse: verb for verb, inverse in _PAIRS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to do; doing it twice is the same as once."""

    verb: Verb
    target: str
    """`engine-3`, `hybrid-0` or `trainer`."""
    tp: int = 0
    """Degree of the engine."""
    layout: TrainLayout | None = None
    """Of the trainer."""

    @property
    def inverse(self) -> "Action":
        return Action(verb=_INVERSE[self.verb], target=self.target, tp=self.tp, layout=self.layout)

    def __str__(self) -> str:
        return f"{self.verb} {self.target}" + (f" (tp {self.tp})" if self.tp else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionCost:
    """Time that a transition takes away from the run."""

    drain_s: float = 0.0
    """Until the trajectories of the engines concerned have finished or moved."""
    transfer_s: float = 0.0
    """Weights and optimizer state."""
    start_s: float = 0.0
    """Processes, engines, joining."""

    @property
    def total_s(self) -> float:
        return self.drain_s + self.transfer_s + self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """Everything between two plans, in order.

    A flip of hybrid 0 to the trainer: drain engine, stop engine, start replica, join training. When the join fails, the inverses
    of the other three run in reverse order, and the plan before is active again.
    """

    tier: Tier
    source: Plan
    target: Plan
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionOutcome:
    """What became of a transition."""

    plan: Plan
    """Active from now on."""
    applied: bool
    failed: Action | None = None
    error: str = ""
    not_undone: tuple[str, ...] = ()
    """Actions whose inverse failed too, with the reason: these GPUs need a person or a recovery."""
    seconds: tuple[tuple[str, float], ...] = ()
    """Every action that was tried, inverses included, in the order of their ends."""
    phases: tuple[tuple[Verb, float], ...] = ()
    """Actions of one verb that ran side by side, in order; these seconds add up to the whole."""
