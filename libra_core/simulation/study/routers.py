"""The routing policies of `libra_core.routing` at work in a simulated world with a mixed fleet."""

from libra_core.simulation.study.config import SystemConfig
from libra_core.simulation.workload.trajectories import Trajectories
from libra_core.simulation.world import Router
from libra_core.types.plan import Plan


def router_for(system: SystemConfig, plan: Plan, work: Trajectories) -> Router | None:
    """None on equal engines, where the kernel's own least-loaded rule is what every policy comes to."""
    return None
