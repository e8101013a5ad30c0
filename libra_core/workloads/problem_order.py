"""The order in which a finite data set is asked: every row once per epoch, reshuffled each time, found for any index at once."""

import random
from collections.abc import Sequence
from functools import lru_cache


def row_at(count: int, seed: int, index: int) -> int:
    """Row for position `index` of the endless stream."""
    epoch, place = divmod(index, count)
    return _order(count, seed, epoch)[place]


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> Sequence[int]:
    order = list(range(count))
    random.Random(f"epoch/{seed}/{epoch}").shuffle(order)
    return order
