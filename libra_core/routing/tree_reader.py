"""What every policy that reads the prefix tree shares: one cursor per live trajectory, and learning from finished ones."""

from libra_core.ports.routing import FinishedTrajectory, TurnContext
from libra_core.routing.prefix_tree import Cursor, PrefixTree
from libra_core.routing.residual import Residual
from libra_core.types.ids import TrajectoryId

ENOUGH = 8.0
"""Finished trajectories, after forgetting, from which on predictions are acted upon."""


class TreeReader:
    """Owner of the cursors. A trajectory's tool returns only ever grow at the end."""

    def __init__(self, tree: PrefixTree) -> None:
        self.tree = tree
        self._cursors: dict[TrajectoryId, Cursor] = {}

    def residual(self, turn: TurnContext) -> Residual:
        """Remaining tokens of a trajectory whose newest tool returns are taken in first."""
        cursor = self._cursors.get(turn.trajectory_id)
        if cursor is None:
            cursor = self._cursors[turn.trajectory_id] = self.tree.start(turn.prompt_id)
        returns, known = turn.tool_returns, len(cursor.labels)
        if known < len(returns):
            for index in range(known, len(returns)):
                self.tree.advance(cursor, returns[index])
        return self.tree.predict(cursor)

    def learn(self, finished: FinishedTrajectory) -> None:
        self._cursors.pop(finished.trajectory_id, None)
        self.tree.learn(finished)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self._cursors.pop(trajectory_id, None)
