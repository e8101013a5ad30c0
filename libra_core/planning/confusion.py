"""What a router makes of a mixed fleet: which share of each length class it serves on which class of engines."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERFECT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSkill:
    """Measured on finished trajectories. The tail counts by itself: one long trajectory on a small engine sets the iteration."""

    accuracy: float
    """Share of trajectories below the last class that are served in their own class."""
    tail_recall: float
    """Share of the longest class that is served there."""

    def confusion(self, classes: int) -> NDArray[np.float64]:
        """`[classes, classes]`, row = right class, column = class of service; errors go to the neighbours in equal parts."""
        matrix = np.zeros((classes, classes))
        for row in range(classes):
            right = self.tail_recall if row == classes - 1 else self.accuracy
            neighbours = [column for column in (row - 1, row + 1) if 0 <= column < classes]
            matrix[row, row] = right if neighbours else 1.0
            for column in neighbours:
                matrix[row, column] = (1.0 - right) / len(neighbours)
        return matrix


ORACLE = RouterSkill(accuracy=PERFECT, tail_recall=PERFECT)
"""Lengths known beforehand: the bound that no router passes."""
