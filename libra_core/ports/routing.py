"""Which engine takes the next turn of a trajectory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from libra_core.types.ids import EngineId, TrajectoryId
from libra_core.types.trajectory import ToolReturn


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What the router knows of an engine at decision time."""

    engine_id: EngineId
    tp: int
    in_flight: int
    """Trajectories bound to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """Causal state of the trajectory that needs an engine."""

    trajectory_id: TrajectoryId
    kind: str
    """Prompt kind, the coarsest predictor of length."""
    order: int
    """Position of its group in the run; older groups come first."""
    current: EngineId | None
    """Where its prefix cache is; None before the first turn or after an engine loss."""
    context_tokens: int
    tool_returns: tuple[ToolReturn, ...]


class RoutingPolicy(Protocol):
    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        """Pick among at least one engine."""
        ...
