"""What the policy itself wrote in a trajectory; prompts and tool text never count."""

import re
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


def said_aloud(turn: str, calls: re.Pattern[str] | None = None) -> str:
    """A turn without its thinking: what follows the last `</think>`, up to a `<think>` that is never closed.

    What `calls` matches is handed to a tool as it stands: a tag inside it, a file's text say, is none of the turn's.
    """
    outside = turn if calls is None else calls.sub(lambda call: " " * len(call[0]), turn)
    begin = outside.rfind(_THOUGHT) + len(_THOUGHT) if _THOUGHT in outside else 0
    end = outside.find(_THINKS, begin)
    return turn[begin:] if end < 0 else turn[begin:end]
