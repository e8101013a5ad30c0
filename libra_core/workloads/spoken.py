"""What the policy itself wrote in a trajectory; prompts and tool text never count."""

from libra_core.types.trajectory import Trajectory


def last_turn(trajectory: Trajectory) -> tuple[int, ...]:
    """The tokens that the policy sampled after the last prompt or tool token; empty when a tool spoke last."""
    end = len(trajectory.token_ids)
    start = end
    while start and trajectory.loss_mask[start - 1]:
        start -= 1
    return trajectory.token_ids[start:end]
