"""What a finished trajectory leaves for scheduling: the tokens and seconds of each of its turns, as numbers alone."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from libra_core.types.group import TrajectoryGroup
from libra_core.types.lengths import LengthRecord
from libra_core.types.trajectory import Trajectory


def records_of(groups: Iterable[TrajectoryGroup], step: int) -> list[LengthRecord]:
    """Of every sample that generated something, groups together; those lost to infrastructure are left out."""
    return [record_of(t, step) for group in groups for t in group.usable if t.generated_tokens]


def record_of(trajectory: Trajectory, step: int) -> LengthRecord:
    """Turns are the stretches of sampled tokens; what stands between them came from tools."""
    stretches = [(sampled, len(list(run))) for sampled, run in groupby(trajectory.loss_mask[trajectory.prompt_tokens :])]
    generated = [length for sampled, length in stretches if sampled]
    returned = [length for sampled, length in stretches if not sampled]
    return LengthRecord(
        prompt_tokens=trajectory.prompt_tokens,
        generated_tokens=tuple(generated),
        tool_tokens=tuple(returned[: len(generated)]),
        tool_s=tuple(_seconds(trajectory, len(returned[: len(generated)]))),
        step=step,
        engine=str(trajectory.engine_history[-1]) if trajectory.engine_history else None,
    )


def _seconds(trajectory: Trajectory, stretches: int) -> Sequence[float]:
    """Of each stretch of tool tokens; calls beyond them belong to the last one, so that no second is lost."""
    seconds = [tool.duration_s + tool.waited_s for tool in trajectory.tool_returns]
    if not stretches:
        return []
    kept = [*seconds[: stretches - 1], sum(seconds[stretches - 1 :])]
    return kept + [0.0] * (stretches - len(kept))
