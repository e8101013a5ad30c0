"""One line of a preflight."""

from collections.abc import Callable
from dataclasses import dataclass

from libra_core.errors import LibraError

Check = Callable[[], str]
"""Returns what was found, as a sentence without its full stop; raises `LibraError` for what a run would fail of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found, and what to do where it is not as it must be."""

    name: str
    ok: bool
    sentence: str
    remedy: str | None = None

    @property
    def text(self) -> str:
        return self.sentence if self.remedy is None else f"{self.sentence}; {self.remedy}"


def finding_of(name: str, check: Check) -> Finding:
    """Of an error the part after the first semicolon is the remedy, as in every sentence of this code."""
    try:
        return Finding(name=name, ok=True, sentence=check())
    except (LibraError, OSError) as error:
        said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
        sentence, _, remedy = said.partition("; ")
        return Finding(name=name, ok=False, sentence=sentence, remedy=remedy or None)
