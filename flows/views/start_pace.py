"""How far a start is, in words: the share that is done, and how long it may still take where that is known.

Two things make it known: a phase that reports many shares is as fast as it was so far, and one that reports none takes as long as
the last time under the same run root.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from libra_core.tracking.run_folder import write_atomically

_EVERY_S = 10.0
"""Between two lines of one phase."""
_SURE_AFTER_S = 4.0
_SHARES = 3
"""So many shares, and so much time, before a pace is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProgress:
    """Of one phase, now."""

    name: str
    share: float
    expected: str
    """`about 40 s left`, `38 s last time`, or nothing."""
    is_news: bool
    """Whether a log should have it."""

    @property
    def line(self) -> str:
        said = ", ".join(part for part in (f"{self.share:.0%}" if self.share else "", self.expected) if part)
        return f"{self.name}: {said}" if said else self.name


class StartPace:
    """Hears every report of a start; one thread at a time."""

    def __init__(self, last_times: Mapping[str, float] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._last_times = last_times or {}
        self._clock = clock
        self._phase = ""
        self._began_s = clock()
        self._first_share = 0.0
        self._shares = 0
        self._share = 0.0
        self._said_s = 0.0
        self.times: dict[str, float] = {}
        """Seconds of the phases that have ended."""

    def hear(self, name: str, share: float) -> PhaseProgress:
        """`name` may have a detail after a comma, such as a loss, which makes it no other phase."""
        now_s, phase = self._clock(), name.partition(",")[0]
        begins = phase != self._phase or share < self._share
        if begins:
            self._end(now_s)
            self._phase, self._began_s, self._first_share, self._shares = phase, now_s, share, 0
        self._shares += share != self._share
        self._share = share
        is_news = begins or (share < 1.0 and now_s - self._said_s >= _EVERY_S)
        if is_news:
            self._said_s = now_s
        return PhaseProgress(name=name, share=share, expected=self._expected(now_s), is_news=is_news)

    def _end(self, now_s: float) -> None:
        if self._phase:
            self.times[self._phase] = round(self.times.get(self._phase, 0.0) + now_s - self._began_s, 1)

    def _expected(self, now_s: float) -> str:
        passed_s, done = now_s - self._began_s, self._share - self._first_share
        if self._shares >= _SHARES and passed_s >= _SURE_AFTER_S and done > 0:
            return f"about {_rounded(passed_s * (1.0 - self._share) / done)} left"
        last_s = self._last_times.get(self._phase, 0.0)
        return f"{_rounded(last_s)} last time" if last_s >= 1.0 and self._shares < _SHARES else ""


def read_times(root: Path) -> Mapping[str, float]:
    """Seconds of each phase of the last start under this run root; empty where there was none."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        values = json.loads(_file(root).read_text(encoding="utf-8"))
        return {str(name): float(seconds) for name, seconds in values.items()}
    return {}


def keep_times(root: Path, times: Mapping[str, float]) -> None:
    """For the next start; a disk that refuses costs no more than the words `last time`."""
    with suppress(OSError):
        _file(root).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_file(root), json.dumps({**read_times(root), **times}, indent=1))


def _file(root: Path) -> Path:
    return root / "cache" / "start-times.json"


def _rounded(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
