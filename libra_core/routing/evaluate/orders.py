"""In which order recorded trajectories are replayed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from libra_core.routing.evaluate.recorded import RecordedTrajectory

Order = Literal["recorded", "grpo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One trajectory at its place in an order."""

    trajectory: RecordedTrajectory
    epoch: int
    """1 when its prompt is visited for the first time."""
    sample_index: int
    """Position among the samples of its prompt in this epoch."""


def recorded_order(trajectories: Sequence[RecordedTrajectory]) -> list[Visit]:
    """As the file has them. Samples of a prompt that stand together are one visit of it, as in a group."""
    visits: list[Visit] = []
    last: dict[str, Visit] = {}
    for position, trajectory in enumerate(trajectories):
        before = last.get(trajectory.prompt_id)
        together = before is not None and trajectories[position - 1].prompt_id == trajectory.prompt_id
        visit = Visit(
            trajectory=trajectory,
            epoch=1 if before is None else before.epoch + (not together),
            sample_index=before.sample_index + 1 if before is not None and together else 0,
        )
        last[trajectory.prompt_id] = visit
        visits.append(visit)
    return visits


def grpo_order(trajectories: Sequence[RecordedTrajectory], epochs: int, seed: int) -> list[Visit]:
    """Epochs over shuffled prompts, all samples of a prompt together.

    The samples of a prompt are dealt over the epochs, so that each trajectory is replayed once and none is predicted after it
    was learnt from. A prompt with fewer samples than epochs is missing in the later ones.
    """
    draw = random.Random(seed)
    samples: dict[str, list[RecordedTrajectory]] = {}
    for trajectory in trajectories:
        samples.setdefault(trajectory.prompt_id, []).append(trajectory)
    dealt = {prompt: _deal(draw.sample(members, len(members)), epochs) for prompt, members in samples.items()}
    visits: list[Visit] = []
    for epoch in range(epochs):
        for prompt in draw.sample(sorted(dealt), len(dealt)):
            hand = dealt[prompt][epoch]
            visits += [Visit(trajectory=item, epoch=epoch + 1, sample_index=index) for index, item in enumerate(hand)]
    return visits


def _deal(members: list[RecordedTrajectory], epochs: int) -> list[list[RecordedTrajectory]]:
    """Shares that differ by at most one, the larger ones last: what is asked of the later epochs is what counts."""
    share, rest = divmod(len(members), epochs)
    if not share:
        return [[member] for member in members] + [[] for _ in range(epochs - len(members))]
    sizes = [share + (epoch >= epochs - rest) for epoch in range(epochs)]
    return [members[sum(sizes[:epoch]) : sum(sizes[: epoch + 1])] for epoch in range(epochs)]
