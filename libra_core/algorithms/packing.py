"""Which rank trains which sequence, and which sequences share a micro-batch. Pure; answers are indices into `lengths`."""

from collections.abc import Sequence


def share(lengths: Sequence[int], *, dp_rank: int, dp_size: int) -> tuple[int, ...]:
    """Sequences of one data-parallel rank, balanced by tokens (longest first to the least loaded rank).

    Every rank computes the same division from the same lengths. Ascending indices; empty only when there are fewer sequences
    than ranks.
    """
    if not 0 <= dp_rank < dp_size:
        raise ValueError(f"dp_rank {dp_rank} is outside 0..{dp_size - 1}")
    loads = [0] * dp_size
    mine: list[int] = []
    for index in _longest_first(lengths):
        rank = min(range(dp_size), key=lambda candidate: (loads[candidate], candidate))
        loads[rank] += lengths[index]
        if rank == dp_rank:
            mine.append(index)
    return tuple(sorted(mine))


def pack(lengths: Sequence[int], *, budget_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Micro-batches of at most `budget_tokens` by first-fit decreasing; a longer sequence travels alone.

    Their number may differ between data-parallel ranks, and does not matter: losses are sums that are divided once, globally.
    """
    bins: list[list[int]] = []
    free: list[int] = []
    for index in _longest_first(lengths):
        fitting = next((i for i, room in enumerate(free) if room >= lengths[index]), None)
        if fitting is None:
            bins.append([index])
            free.append(budget_tokens - lengths[index])
        else:
            bins[fitting].append(index)
            free[fitting] -= lengths[index]
    return tuple(tuple(sorted(members)) for members in bins)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
