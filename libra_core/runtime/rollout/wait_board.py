"""Who waits for whom since when: what a step reads out when it does not get its groups."""

import itertools
import time
from collections.abc import Generator
from contextlib import contextmanager


class WaitBoard:
    """Owned by one event loop. Holds what is waited for at the moment, and nothing of what is over."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waits: dict[int, tuple[str, str, float]] = {}

    @contextmanager
    def waiting(self, who: str, whom: str) -> Generator[None]:
        """Around a wait."""
        number = next(self._numbers)
        self._waits[number] = (who, whom, time.monotonic())
        try:
            yield
        finally:
            del self._waits[number]

    def longest(self, count: int) -> list[str]:
        """The waits that began first, as sentences; what is left out is counted."""
        now = time.monotonic()
        said = [f"{who} waits {now - since:.0f} s for {whom}" for who, whom, since in list(self._waits.values())[:count]]
        more = len(self._waits) - len(said)
        return [*said, f"and {more} more wait"] if more else said
