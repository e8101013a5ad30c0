"""What transitions really cost and forecasts were really off by. Immutable: each observation gives a new value."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from libra_core.errors import CheckpointError
from libra_core.planning.objective import ERROR
from libra_core.types.transition import Tier, TransitionCost

_REMEMBERED = 3
"""Transitions of one kind that the rolling mean is over."""
_DECAY = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBook:
    """Rolling mean of the measured cost per tier; the prior until there is one."""

    priors: Mapping[Tier, TransitionCost]
    measured: Mapping[Tier, tuple[TransitionCost, ...]] = field(default_factory=dict[Tier, tuple[TransitionCost, ...]])

    def including(self, tier: Tier, cost: TransitionCost) -> "CostBook":
        rows = (*self.measured.get(tier, ()), cost)[-_REMEMBERED:]
        return replace(self, measured={**self.measured, tier: rows})

    def expected(self, tier: Tier) -> TransitionCost:
        rows = self.measured.get(tier) or (self.priors[tier],)
        return TransitionCost(
            drain_s=sum(row.drain_s for row in rows) / len(rows),
            transfer_s=sum(row.transfer_s for row in rows) / len(rows),
            start_s=sum(row.start_s for row in rows) / len(rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBook:
    """Running means of the relative error of iteration-time forecasts, recent ones counting more."""

    total: float = 0.0
    signed: float = 0.0
    weight: float = 0.0

    def including(self, forecast_s: float, measured_s: float) -> "ErrorBook":
        """A comparison that means nothing (no forecast, no time) changes nothing."""
        if not math.isfinite(forecast_s) or measured_s <= 0:
            return self
        error = (forecast_s - measured_s) / measured_s
        return ErrorBook(
            total=_DECAY * self.total + abs(error),
            signed=_DECAY * self.signed + error,
            weight=_DECAY * self.weight + 1,
        )

    @property
    def error(self) -> float:
        """Of one forecast. Before the first comparison, what they were off by against event simulations."""
        return self.total / self.weight if self.weight else ERROR

    @property
    def measured(self) -> bool:
        """Whether `error` is of this run's own forecasts."""
        return self.weight > 0

    @property
    def bias(self) -> float:
        """Of many forecasts: what single ones scatter by, since some steps have longer trajectories than others, evens out."""
        return self.signed / self.weight if self.weight else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What a run has measured of its transitions and its forecasts, in every checkpoint."""

    costs: CostBook
    errors: ErrorBook = field(default_factory=ErrorBook)

    def to_json(self) -> dict[str, object]:
        """The priors are the configuration's and are not in it."""
        measured = {tier.value: [asdict(cost) for cost in rows] for tier, rows in self.costs.measured.items()}
        return {"costs": measured, "errors": asdict(self.errors)}

    @classmethod
    def from_json(cls, saved: Any) -> "Experience":
        """Without priors. Raises `CheckpointError` for anything but what `to_json` gave."""
        try:
            measured = {Tier(tier): tuple(TransitionCost(**row) for row in rows) for tier, rows in saved["costs"].items()}
            return cls(costs=CostBook(priors={}, measured=measured), errors=ErrorBook(**saved["errors"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the measured costs in the checkpoint are damaged ({error}); resume from another checkpoint of the run"
            ) from None
