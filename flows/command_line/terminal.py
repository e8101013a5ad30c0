"""Where commands print for people. Text is shown as it is written: `[asynchronous]` is a value, and no markup of rich."""

from rich.console import Console


def terminal(*, stderr: bool = False, width: int | None = None) -> Console:
    """The one kind of console of all commands."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False)
