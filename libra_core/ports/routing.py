"""Which engine takes the next turn of a trajectory, and what the router learns when one has finished."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from libra_core.types.ids import EngineId, PromptId, TrajectoryId
from libra_core.types.trajectory import ToolOutcome

NO_PROMPT = PromptId("")
"""A trajectory of which only the stratum is known; the router then falls back to what holds for all prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What the router knows of an engine at decision time. Only engines that can take the trajectory are offered."""

    engine_id: EngineId
    tp: int
    in_flight: int
    """Trajectories bound to it."""
    bucket: int = 0
    """Index of its bucket, ascending by token limit."""
    capacity: int | None = None
    """Trajectories it can decode at once; more wait inside the engine. None: no limit worth knowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """Causal state of the trajectory that needs an engine. Asked before its first turn and after each tool return."""

    trajectory_id: TrajectoryId
    kind: str
    """Prompt kind, the coarsest predictor of length."""
    order: int
    """Position of its group in the run; older groups come first."""
    current: EngineId | None
    """Where its prefix cache is; None before the first turn or after an engine loss."""
    context_tokens: int
    """Prompt, generated and tool tokens so far: what a move has to prefill."""
    tool_returns: Sequence[ToolOutcome]
    """All of them in order; their number is the number of finished turns."""
    prompt_id: PromptId = NO_PROMPT
    prompt_text: str = ""
    """Only the embedding baseline reads it."""
    generated_tokens: int = 0
    """Sampled by the policy so far, over all turns."""
    prepared: EngineId | None = None
    """Another engine that has computed the context ahead, while a tool ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrajectory:
    """What a trajectory turned out to be. `turn_tokens[i]` were generated before `tool_returns[i]`."""

    trajectory_id: TrajectoryId
    prompt_id: PromptId
    turn_tokens: Sequence[int]
    """Generated tokens per turn, `[turns]`."""
    tool_returns: Sequence[ToolOutcome]
    """`[turns - 1]`, or `[turns]` when the last tool return was not answered any more."""
    prompt_text: str = ""

    @property
    def generated_tokens(self) -> int:
        return sum(self.turn_tokens)


class RoutingPolicy(Protocol):
    """Owned by one event loop. `choose` is on the path of every turn; `learn` is not."""

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        """Pick among at least one engine."""
        ...

    def learn(self, finished: FinishedTrajectory) -> None:
        """The trajectory has ended by itself; whatever was kept for it goes."""
        ...

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """It has ended for want of infrastructure: nothing is to be learnt from its length."""
        ...
