"""What a workload offers to the agent loop and to the scorer."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory


class Environment(Protocol):
    """One workload's tools and rewards. Stateless between calls, safe to call from several threads."""

    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn: the end of a tool call and the end of the answer."""
        ...

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        """The tool call that ends this turn, or None when the trajectory is finished."""
        ...

    def call_tool(self, prompt: Prompt, call: ToolCall) -> ToolReturn:
        """Run the tool; a malformed call is answered, not raised. Blocking: the caller sets the deadline."""
        ...

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        """What the policy reads when the tool runner gave no answer, such as after a deadline."""
        ...

    def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        """Reward of a finished trajectory, from what the model itself wrote."""
        ...

    def render(self, token_ids: Sequence[int]) -> str:
        """Text for people."""
        ...


class PromptSource(Protocol):
    """An endless, seeded stream of prompts that can resume at any index."""

    def training(self, start: int) -> Iterator[Prompt]: ...

    def heldout(self, count: int) -> Sequence[Prompt]: ...
