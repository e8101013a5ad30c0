"""Repeating a grid within a time that a person waits for."""

import time
from collections.abc import Callable, Iterator

_LEAST_SWEEPS = 2
"""A median of fewer visits is a single disturbed one."""


def sweeps_within(what: str, most: int, budget_s: float, progress: Callable[[str], None]) -> Iterator[int]:
    """Numbers of the sweeps: `most`, or as many as the budget holds, but at least two. Each is announced with the time so far."""
    started_s = time.monotonic()
    for number in range(most):
        spent_s = time.monotonic() - started_s
        if number >= _LEAST_SWEEPS and spent_s / number * (number + 1) > budget_s:
            progress(f"{what}: stopped after {number} of {most} sweeps, one more would not end within {budget_s:.0f} s")
            return
        progress(f"{what}: sweep {number + 1} of {most} ({spent_s:.0f} s)")
        yield number
