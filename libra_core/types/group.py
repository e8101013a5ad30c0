"""A GRPO group on its way from the coordinator to the trainer."""

from dataclasses import dataclass

from libra_core.types.ids import PolicyVersion
from libra_core.types.trajectory import Prompt, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """All samples of one prompt."""

    index: int
    """Position of the prompt in the run's stream; a group trains exactly once per index."""
    prompt: Prompt
    started_version: PolicyVersion
    trajectories: tuple[Trajectory, ...]
    retries: int = 0

    @property
    def usable(self) -> tuple[Trajectory, ...]:
        """Samples that infrastructure did not lose."""
        return tuple(t for t in self.trajectories if t.failure is None)
