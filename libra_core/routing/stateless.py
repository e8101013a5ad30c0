"""For policies that keep nothing between decisions."""

from libra_core.ports.routing import FinishedTrajectory
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.types.ids import TrajectoryId


class Stateless:
    """Answers every message about lengths by doing nothing."""

    def learn(self, finished: FinishedTrajectory) -> None:
        """Lengths do not matter to it."""

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Nothing is kept per trajectory."""

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        """It knows no buckets."""
