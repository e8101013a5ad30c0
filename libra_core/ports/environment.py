"""What a workload offers to the agent loop and to the scorer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStops:
    """What ends a turn; the turn keeps it.

    For tokenizers that split a tag into pieces: the engine stops at each token that may complete a tag, and the turn goes on
    when its text holds none. So the engine needs no text, and no token is cut.
    """

    token_ids: tuple[int, ...]
    candidates: tuple[int, ...] = ()
    """Tokens that may complete one of `texts`."""
    texts: tuple[str, ...] = ()


class Episode(Protocol):
    """The tools of one trajectory, with what it has changed. Used by one coroutine, one call at a time."""

    async def step(self, call: ToolCall) -> ToolReturn:
        """Run the tool. A malformed call is answered, not raised; an exception means that infrastructure failed.

        The caller sets the deadline and cancels; whatever the tool had started is then ended.
        """
        ...

    async def submission(self) -> str:
        """What the trajectory leaves to be scored beside its text, such as changed files; empty for most workloads."""
        ...

    async def close(self) -> None: ...


class Environment(Protocol):
    """One workload's tools and rewards. Holds no state of a trajectory."""

    def stops(self) -> TurnStops:
        """The end of a tool call and the end of the answer."""
        ...

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        """The tool call that ends this turn, or None when the trajectory is finished. Never raises."""
        ...

    async def reset(self, prompt: Prompt) -> Episode:
        """Begin a trajectory; waits while the host has no room for its tools."""
        ...

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        """What the policy reads when the tool runner gave no answer, such as after a deadline."""
        ...

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        """Reward of a finished trajectory, from what the model itself wrote; an exception means that the scorer failed."""
        ...

    def render(self, token_ids: Sequence[int]) -> str:
        """Text for people."""
        ...


class PromptSource(Protocol):
    """An endless, seeded stream of prompts that can resume at any index."""

    def training(self, start: int) -> Iterator[Prompt]: ...

    def heldout(self, count: int) -> Sequence[Prompt]: ...
