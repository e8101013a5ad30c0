"""When lost groups end a run: an outage is waited out while some groups get through it, and not when none does."""

from libra_core.types.group import TrajectoryGroup
from libra_core.types.trajectory import Failure, FailureKind

_WHAT = {
    FailureKind.ENGINE: "an engine failed",
    FailureKind.TOOL_RUNNER: "its tools failed",
    FailureKind.SCORER: "its reward failed",
    FailureKind.PROMPT: "its prompt cannot be answered",
}
_LONGEST = 400


class LostGroups:
    """Counts groups lost in a row, in the order in which they end. Owned by the coordinator's event loop."""

    def __init__(self, bound: int) -> None:
        """`bound`: `rollout.max_lost_groups`."""
        self._bound = bound
        self._in_a_row = 0
        self.verdict: str | None = None
        """Why the run ends; None while it may go on."""

    def keep(self) -> None:
        """A group can be trained, whole or in part."""
        self._in_a_row = 0

    def lose(self, group: TrajectoryGroup) -> None:
        self._in_a_row += 1
        if self._in_a_row >= self._bound and self.verdict is None:
            self.verdict = (
                f"{self._in_a_row} groups in a row were lost (rollout.max_lost_groups = {self._bound}); of the newest, group "
                f"{group.index}, {newest_failure(group)}; mend that and resume the run, which issues the lost prompts again"
            )


def is_unanswerable(group: TrajectoryGroup) -> bool:
    """Its prompt is at fault: no outage, and no better another time."""
    return any(t.failure is not None and t.failure.kind is FailureKind.PROMPT for t in group.trajectories)


def newest_failure(group: TrajectoryGroup) -> str:
    """In words: what the sample that ended last with a failure died of."""
    failed = [t for t in group.trajectories if t.failure is not None]
    if not failed:
        return "too few samples were usable"
    return _in_words(max(failed, key=lambda t: t.finished_s).failure)


def _in_words(failure: Failure | None) -> str:
    assert failure is not None
    message = " ".join(failure.message.split())
    return f"{_WHAT[failure.kind]}: {message[:_LONGEST]}"
