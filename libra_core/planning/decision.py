"""Whether to change the plan (docs/elasticity.md#replanning). Pure: forecasts, costs and the last rounds in, a decision out.

What the trainer was seen to wait is no input: it waits for the tail of the batch, which more rollout GPUs do not shorten, and a
controller that follows it runs away (docs/measurements.md#drift-and-what-moves-cost). A move must lower the term that binds.
"""

import math
from dataclasses import dataclass, replace

from libra_core.types.decision import Decision, Reason, Verdict
from libra_core.types.forecast import Candidate, Term, Terms
from libra_core.types.plan import Plan
from libra_core.types.transition import Tier, TransitionCost


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanPolicy:
    """How cautious the planner is."""

    horizon_steps: int = 200
    """Steps over which a gain must repay its cost."""
    margin: float = 0.2
    """Share by which the savings must exceed the cost."""
    cooldown_steps: int = 20
    """Steps after a switch without another."""
    hysteresis: float = 0.5
    """By how much the gain that is asked for grows when the candidate is the plan that was just left."""
    persistence_rounds: int = 2
    """Looks in a row that a repartition or a new layout must win."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastComparisons:
    """What `decide` remembers between rounds."""

    switched_at: int | None = None
    left: Plan | None = None
    """The plan before the last switch."""
    streak: int = 0
    """Looks in a row, up to the last one, that a move above `FLIP` won but for its persistence."""

    def after(self, decision: Decision) -> "PastComparisons":
        if decision.verdict is Verdict.SWITCH:
            return PastComparisons(switched_at=decision.step, left=decision.current.plan)
        return replace(self, streak=self.streak + 1 if decision.reason is Reason.NOT_PERSISTENT else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """What is known when the plan is compared; both forecasts are made under the same, newest profile."""

    step: int
    steps_left: int
    current: Candidate
    candidate: Candidate
    cost: TransitionCost
    forecast_error: float
    """Relative, of one round; the mean of what was measured, `planning.objective.ERROR` before that."""
    forecast_bias: float | None = None
    """Relative, signed: what forecasts are off by on average. Unset: nobody knows."""
    error_measured: bool = False
    """Whether the error is one of this run's own forecasts."""
    grounding: str = "datasheet"


def decide(comparison: PlanComparison, policy: ReplanPolicy, past: PastComparisons) -> Decision:
    """Switch when the time saved over the horizon exceeds the cost with its margin, and nothing speaks against it."""
    horizon = min(policy.horizon_steps, comparison.steps_left)
    gain = comparison.current.forecast.t_iter_s - comparison.candidate.forecast.t_iter_s
    reason = _reason(comparison, policy, past, gain * horizon)
    return Decision(
        step=comparison.step,
        verdict=Verdict.SWITCH if reason is Reason.PAYS else Verdict.KEEP,
        reason=reason,
        tier=tier_of(comparison.current.plan, comparison.candidate.plan),
        current=comparison.current,
        candidate=comparison.candidate,
        binding=comparison.current.forecast.terms.binding,
        gain_s_per_step=gain,
        saved_s=gain * horizon,
        cost=comparison.cost,
        horizon_steps=horizon,
        forecast_error=_error(comparison, policy),
        error_measured=comparison.error_measured,
        grounding=comparison.grounding,
    )


def tier_of(current: Plan, candidate: Plan) -> Tier | None:
    """The dearest kind of move between two plans; None when no process would move.

    Which of a plan's engines may change sides is settled when a run starts: two plans that differ in it alone are no move.
    """
    if _world(current) != _world(candidate):
        return Tier.RELAYOUT
    if _fleet(current) != _fleet(candidate):
        return Tier.REPARTITION
    return Tier.FLIP if current.hybrids_training != candidate.hybrids_training else None


def _reason(comparison: PlanComparison, policy: ReplanPolicy, past: PastComparisons, saved_s: float) -> Reason:
    current, candidate = comparison.current.forecast, comparison.candidate.forecast
    tier = tier_of(comparison.current.plan, comparison.candidate.plan)
    gain = current.t_iter_s - candidate.t_iter_s
    back = comparison.candidate.plan == past.left
    needed = _error(comparison, policy) * current.t_iter_s * (1 + policy.hysteresis if back else 1)
    rules = (
        (tier is None, Reason.SAME_PLAN),
        (not math.isfinite(gain), Reason.NO_FORECAST),
        (past.switched_at is not None and comparison.step - past.switched_at < policy.cooldown_steps, Reason.COOLDOWN),
        (gain <= needed, Reason.BELOW_ERROR),
        (not _relaxes(current.terms, candidate.terms, needed), Reason.BINDING_STAYS),
        (saved_s <= comparison.cost.total_s * (1 + policy.margin), Reason.NOT_REPAID),
        (tier is not Tier.FLIP and past.streak + 1 < policy.persistence_rounds, Reason.NOT_PERSISTENT),
    )
    return next((reason for against, reason in rules if against), Reason.PAYS)


def _error(comparison: PlanComparison, policy: ReplanPolicy) -> float:
    """That a gain must exceed. A flip acts on one round; moves that must win several are held to what does not even out over
    them: the forecasts' bias, and of their scatter what so many rounds leave."""
    if comparison.forecast_bias is None or tier_of(comparison.current.plan, comparison.candidate.plan) is Tier.FLIP:
        return comparison.forecast_error
    return max(abs(comparison.forecast_bias), comparison.forecast_error / math.sqrt(policy.persistence_rounds))


def _relaxes(current: Terms, candidate: Terms, needed_s: float) -> bool:
    """Whether the term that binds now falls by what the forecast's error asks of a gain."""
    return _value(current, current.binding) - _value(candidate, current.binding) > needed_s


def _value(terms: Terms, term: Term) -> float:
    return dict(zip(Term, (terms.trainer_s, terms.fleet_s, terms.slowest_s, terms.group_s), strict=True))[term]


def _world(plan: Plan) -> tuple[int, ...]:
    train = plan.train
    return train.tp, train.pp, train.cp, train.ep, train.dp


def _fleet(plan: Plan) -> dict[int, int]:
    return dict(plan.rollout.engines)
