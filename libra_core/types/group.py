"""A GRPO group on its way from the coordinator to the trainer."""

from dataclasses import dataclass

from libra_core.types.ids import PolicyVersion
from libra_core.types.trajectory import Prompt, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """All samples of one prompt.

    Group 17 with `rollout.group_size` 4, of which an engine took one down: 4 trajectories with rewards 1, 0, 0 and none, 3
    usable, advantages (`group_mean`) 0.67, -0.33, -0.33 and none.
    """

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
