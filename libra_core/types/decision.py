"""One plan comparison: what was compared, what was decided and why."""

from dataclasses import dataclass
from enum import StrEnum

from libra_core.types.forecast import Candidate, Term
from libra_core.types.transition import Tier, TransitionCost, TransitionOutcome


class Verdict(StrEnum):
    KEEP = "keep"
    SWITCH = "switch"


class Reason(StrEnum):
    PAYS = "pays"
    """The only reason to switch."""
    SAME_PLAN = "same plan"
    NO_FORECAST = "no forecast"
    COOLDOWN = "cooldown"
    BELOW_ERROR = "gain below the error of the forecast"
    """Raised by the hysteresis when the candidate is the plan that was just left."""
    BINDING_STAYS = "what binds would stay"
    NOT_REPAID = "not repaid within the horizon"
    NOT_PERSISTENT = "not persistent yet"
    """A costlier tier must win several rounds in a row."""


class Outcome(StrEnum):
    """What became of a decision; each gets exactly one."""

    KEPT = "kept"
    """Nothing was to move."""
    DONE = "done"
    UNDONE = "undone"
    """The move failed and was rolled back."""
    ABANDONED = "abandoned"
    """The run ended while the move was under way."""
    UNDER_WAY = "under way"
    """Not yet one of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A ledger entry, also when nothing changes.

    At step 40 the trainer binds (`Term.TRAINER`), and with one more replica an iteration would take 8.6 instead of 9.8 s: a gain
    of 1.2 s a step, 120 s over `horizon_steps` 100, against a cost of 14 s and forecasts that are off by 0.05: `SWITCH`, `PAYS`.
    """

    step: int
    verdict: Verdict
    reason: Reason
    tier: Tier | None
    """None: both plans are the same."""
    current: Candidate
    candidate: Candidate
    binding: Term
    """What sets the iteration time of the current plan."""
    gain_s_per_step: float
    saved_s: float
    """Over the horizon, or what is left of the run if that is shorter."""
    cost: TransitionCost
    horizon_steps: int
    forecast_error: float
    """Relative, that a gain must exceed."""
    error_measured: bool = False
    """Whether that is what forecasts of this run were off by; before the first comparison it is an assumption."""
    grounding: str
    """What the forecasts rest on: measured, derived or datasheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Realised:
    """What an applied decision brought, some steps later."""

    step: int
    """Of the decision."""
    gain_s_per_step: float
    """Mean iteration time before minus after; the workload's own drift is in it."""
    t_iter_s: float
    """Mean after the switch; against the forecast of the candidate it shows the forecast's error."""
    cost_s: float
    """Measured time of the transition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedDecision:
    """What became of an earlier decision: its transition ended, the run did so first, or its realised gain is known."""

    step: int
    """Of the decision."""
    outcome: TransitionOutcome | None = None
    abandoned: bool = False
    realised: Realised | None = None
