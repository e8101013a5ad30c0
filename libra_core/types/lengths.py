"""What is known of past trajectories, as far as scheduling cares."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRecord:
    """One finished trajectory."""

    prompt_tokens: int
    generated_tokens: tuple[int, ...]
    """`[turns]`."""
    tool_tokens: tuple[int, ...] = ()
    """`[turns - 1]`, or `[turns]` when the last turn called a tool too."""
    tool_s: tuple[float, ...] = ()
    """Seconds that each tool took, as `tool_tokens`."""
    step: int | None = None
    """Optimizer step of its sampling; without it the record is as recent as any other."""
    engine: str | None = None
    """That served its last turn."""
