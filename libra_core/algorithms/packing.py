"""Which rank trains which sequence, and which sequences share a micro-batch. Pure; answers are indices into `lengths`."""

from collections.abc import Sequence


def share(lengths: Sequence[int], *, loads: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Sequences of every data-parallel rank, longest first to the least loaded one; `loads` are the tokens ranks had before.

    Every rank computes the same division from the same lengths. Ascending indices; a rank may get none. When a step comes in
    parts, carrying the loads from part to part keeps ranks within one sequence of each other over the whole step.

    >>> share([5, 3, 4, 2], loads=[0, 0])  # 5 to rank 0, 4 and 3 to rank 1, 2 to rank 0: 7 tokens each
    ((0, 3), (1, 2))
    >>> share([4], loads=[7, 7])
    ((0,), ())
    """
    loads = list(loads)
    shares: list[list[int]] = [[] for _ in loads]
    for index in _longest_first(lengths):
        # Ties by rank and by index: ranks that broke them differently would train a sequence twice, or never.
        rank = min(range(len(loads)), key=lambda candidate: (loads[candidate], candidate))
        loads[rank] += lengths[index]
        shares[rank].append(index)
    return tuple(tuple(sorted(mine)) for mine in shares)


def pack(lengths: Sequence[int], *, budget_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Micro-batches of at most `budget_tokens` by first-fit decreasing; a longer sequence travels alone.

    Their number may differ between data-parallel ranks, and does not matter: losses are sums that are divided once, globally.

    >>> pack([5, 3, 4, 2, 9], budget_tokens=8)
    ((4,), (0, 1), (2, 3))
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
