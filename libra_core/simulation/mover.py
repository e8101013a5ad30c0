"""Moves of a simulated world, at the prices of its truth."""

from libra_core.planning.experience import CostBook
from libra_core.simulation.truth import TransitionTruth
from libra_core.simulation.world import World
from libra_core.types.plan import Plan
from libra_core.types.transition import Tier, TransitionCost, TransitionOutcome, Verb


class WorldMover:
    """Changes a world's plan at once; the move has ended when new engines serve and the trainer goes on."""

    def __init__(self, world: World, *, free: bool = False) -> None:
        """`free`: moves cost nothing."""
        self._world, self._free = world, free
        self._seconds = 0.0
        self._ends_s = 0.0

    @property
    def priors(self) -> CostBook:
        """What moves are believed to cost before one was measured: the truth's seconds."""
        return CostBook(priors={tier: TransitionCost(start_s=max(self._seconds_of(tier))) for tier in Tier})

    def move(self, plan: Plan, tier: Tier) -> None:
        engine_s, trainer_s = self._seconds_of(tier)
        self._seconds = max(engine_s, trainer_s)
        self._ends_s = self._world.now_s + self._seconds
        self._world.apply(plan, engine_s=engine_s, trainer_s=trainer_s)

    def outcome(self) -> TransitionOutcome | None:
        """Of the newest move; None until it has ended in virtual time. It cannot fail."""
        if self._world.now_s < self._ends_s:
            return None
        return TransitionOutcome(plan=self._world.plan, applied=True, phases=((Verb.START_ENGINE, self._seconds),))

    def _seconds_of(self, tier: Tier) -> tuple[float, float]:
        """Until new engines serve, and for how long the trainer stands still."""
        return (0.0, 0.0) if self._free else seconds_of(self._world.truth.transitions, tier)


def seconds_of(truth: TransitionTruth, tier: Tier) -> tuple[float, float]:
    """Until new engines serve, and for how long the trainer stands still."""
    seconds = {
        Tier.FLIP: (truth.hybrid_engine_s, truth.hybrid_trainer_s),
        Tier.REPARTITION: (truth.engine_start_s, 0.0),
        Tier.RELAYOUT: (truth.engine_start_s, truth.trainer_rebuild_s),
    }
    return seconds[tier]
