"""How the built-in questions change over a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from libra_core.config.workload import SearchR1Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What a question is like."""

    two_hop_share: float
    search_s: float


class QuestionDrift:
    """Linear between the configured points, constant outside them; by the step that a prompt would be trained in."""

    def __init__(self, settings: SearchR1Config, groups_per_step: int) -> None:
        points: Sequence[tuple[float, float, float]] = [
            (point.step, point.two_hop_share, point.search_s) for point in settings.drift
        ] or [(0, settings.two_hop_share, settings.search_s)]
        self._steps, self._shares, self._searches = zip(*points, strict=True)
        self._groups_per_step = groups_per_step

    def at(self, prompt: int) -> Mix:
        """Of the prompt with this index."""
        step = prompt / self._groups_per_step
        return Mix(
            two_hop_share=float(np.interp(step, self._steps, self._shares)),
            search_s=float(np.interp(step, self._steps, self._searches)),
        )
