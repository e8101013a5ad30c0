"""Nodes of the prefix tree as rows of one array: a histogram of remaining tokens, their sum, their weight. Bounded."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from libra_core.routing.sketch import BINS

TOKENS = BINS
"""Column of the weighted sum of remaining tokens."""
WEIGHT = BINS + 1
"""Column of the weight of all visits."""
WIDTH = BINS + 2
LABEL_BITS = 16
_START_ROWS = 256

Ids = NDArray[np.int64]


class NodeTable:
    """Rows by node id, and the child of a node under a label. Parents have lower ids than their children."""

    def __init__(self) -> None:
        self.rows: NDArray[np.float32] = np.zeros((_START_ROWS, WIDTH), np.float32)
        self.keys: list[int] = []
        """`parent << LABEL_BITS | label` per node; -1 for a root."""
        self.children: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def add_root(self) -> int:
        return self._add(-1)

    def child(self, parent: int, label: int) -> int:
        """Made when it is missing."""
        key = parent << LABEL_BITS | label
        result = self.children.get(key)
        if result is None:
            result = self.children[key] = self._add(key)
        return result

    def add(self, ids: Sequence[int], bins: Ids, tokens: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        """One visit each, `[n]` of everything; ids may repeat."""
        at = np.array(ids)
        at *= WIDTH
        count = len(at)
        places = np.empty(3 * count, np.int64)
        np.add(at, bins, out=places[:count])
        np.add(at, TOKENS, out=places[count : 2 * count])
        np.add(at, WEIGHT, out=places[2 * count :])
        values = np.empty(3 * count, np.float32)
        values[:count] = weights
        np.multiply(weights, tokens, out=values[count : 2 * count], casting="unsafe")
        values[2 * count :] = weights
        np.add.at(self.rows.reshape(-1), places, values)

    def scale(self, factor: float) -> None:
        self.rows[: len(self)] *= np.float32(factor)

    def parents(self) -> Ids:
        """-1 for roots."""
        keys = np.array(self.keys, np.int64)
        return np.where(keys < 0, -1, keys >> LABEL_BITS)

    def keep_heaviest(self, count: int, always: Sequence[int]) -> Ids:
        """Drop all but `count` nodes of greatest weight and the nodes named; among equals the newest stay.

        Returns the new id of every old node, -1 for those dropped. A child never outlives its parent.
        """
        size = len(self)
        weight = self.rows[:size, WEIGHT].copy()
        weight[list(always)] = np.inf
        alive = np.zeros(size, bool)
        alive[np.argsort(weight, kind="stable")[size - min(count, size) :]] = True
        parents = self.parents()
        while True:
            orphans = alive & (parents >= 0) & ~alive[parents]
            if not orphans.any():
                break
            alive[orphans] = False
        return self._compact(alive, parents)

    def _compact(self, alive: NDArray[np.bool_], parents: Ids) -> Ids:
        fresh = np.where(alive, np.cumsum(alive) - 1, -1)
        labels = np.array(self.keys, np.int64) & ((1 << LABEL_BITS) - 1)
        moved = np.where(parents >= 0, fresh[parents] << LABEL_BITS | labels, -1)[alive]
        kept = len(moved)
        self.rows[:kept] = self.rows[: len(alive)][alive]
        self.rows[kept:] = 0
        self.restore(self.rows, moved.tolist())
        return fresh

    def add_rows(self, ids: Sequence[int], rows: NDArray[np.float32]) -> None:
        """`rows[n, WIDTH]` on top of those of `ids`, which may repeat."""
        np.add.at(self.rows, np.array(ids), rows)

    def restore(self, rows: NDArray[np.float32], keys: list[int]) -> None:
        """Take over rows, of which the first ones belong to these keys."""
        self.rows, self.keys = rows, keys
        self.children = {key: node for node, key in enumerate(keys) if key >= 0}

    def _add(self, key: int) -> int:
        node = len(self.keys)
        if node == len(self.rows):
            grown = np.zeros((2 * node, WIDTH), np.float32)
            grown[:node] = self.rows
            self.rows = grown
        self.keys.append(key)
        return node
