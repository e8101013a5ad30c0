"""What the policy itself wrote in a trajectory; prompts and tool text never count."""

from typing import Final

from libra_core.types.trajectory import Trajectory

_THINKS: Final = "<think>"
_THOUGHT: Final = "</think>"


def last_turn(trajectory: Trajectory) -> tuple[int, ...]:
    """The tokens that the policy sampled after the last prompt or tool token; empty when a tool spoke last."""
    end = len(trajectory.token_ids)
    start = end
    while start and trajectory.loss_mask[start - 1]:
        start -= 1
    return trajectory.token_ids[start:end]


def said_aloud(turn: str) -> str:
    """A turn without its thinking: what follows the last `</think>`, up to a `<think>` that is never closed."""
    return turn.rpartition(_THOUGHT)[2].partition(_THINKS)[0]
