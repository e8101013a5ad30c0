"""Programs that solve generated problems, read off their wording: what a script runs and a policy can learn."""

import re
from collections.abc import Callable
from typing import Final

_EXPRESSION: Final = re.compile(r"[:] ([\d\s+*()-]*\d)")
_NUMBERS: Final = re.compile(r"numbers: (\d+(?:, \d+)+)")


def program_of(task: str, question: str) -> str | None:
    """A line of Python that prints the answer; None for a task or a wording that is not known."""
    write = _WRITERS.get(task)
    return write(question) if write else None


def solvable(tasks: tuple[str, ...]) -> bool:
    """Whether every task of reasoning-gym among `tasks` has a program."""
    return all(task in _WRITERS for task in tasks)


def _evaluated(question: str) -> str | None:
    match = _EXPRESSION.search(question)
    return f"print({match.group(1)})" if match else None


def _by_function(name: str) -> Callable[[str], str | None]:
    def write(question: str) -> str | None:
        match = _NUMBERS.search(question)
        return f"import math; print(math.{name}({match.group(1)}))" if match else None

    return write


_WRITERS: Final[dict[str, Callable[[str], str | None]]] = {
    "chain_sum": _evaluated,
    "products": _evaluated,
    "gcd": _by_function("gcd"),
    "lcm": _by_function("lcm"),
}
SOLVABLE: Final = tuple(_WRITERS)
