"""Progress for whoever watches the process; the command line puts a board up, a served run has none."""

from typing import Protocol

from libra_core.types.reports import IterationReport


class Board(Protocol):
    """Called from the flow's thread and from start-up threads."""

    def phase(self, name: str, fraction: float) -> None:
        """A part of the start, 0..1."""
        ...

    def iteration(self, report: IterationReport, total: int) -> None: ...


class SilentBoard:
    """Shows nothing."""

    def phase(self, name: str, fraction: float) -> None: ...

    def iteration(self, report: IterationReport, total: int) -> None: ...


_boards: list[Board] = [SilentBoard()]


def current_board() -> Board:
    return _boards[-1]


def put_up(board: Board) -> None:
    """Show progress on this board until the process ends."""
    _boards.append(board)


def iteration_line(report: IterationReport, total: int) -> str:
    """One line for logs and terminals without progress bars."""
    return (
        f"iteration {report.step + 1}/{total}: reward {report.reward.mean:.3f}, {report.tokens_per_s:.0f} tokens/s, "
        f"T_iter {report.t_iter_s:.2f} s (rollout {report.t_rollout_s:.2f}, train {report.t_train_s:.2f}, "
        f"overlap {report.overlap_fraction:.0%}), staleness {report.rollout.staleness_mean:.2f}, "
        f"policy v{report.update.policy_version}"
    )
