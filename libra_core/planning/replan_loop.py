"""The one replan loop: observe steps, compare forecasts with them, decide, apply, and say what became of each decision.

A session (`planning/replanner.py`) and the study (`simulation/study/controllers.py`) drive it. They differ in where their
observations and forecasts come from and in who carries a move out (`Mover`), not in what is remembered of the rounds before or in
the rule. Pure but for what the mover does. Sessions of `backend.kind=simulated` keep their plan and have no rounds.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from libra_core.planning.decision import PastComparisons, PlanComparison, ReplanPolicy, tier_of
from libra_core.planning.experience import CostBook, ErrorBook
from libra_core.planning.proposals import ReplanFacts, choose
from libra_core.types.decision import Decision, Realised, ResolvedDecision, Verdict
from libra_core.types.plan import Plan
from libra_core.types.transition import Tier, TransitionCost, TransitionOutcome, Verb

logger = logging.getLogger(__name__)

_DRAINS = frozenset({Verb.DRAIN_ENGINE, Verb.LEAVE})
_TRANSFERS = frozenset({Verb.JOIN, Verb.ADMIT_ENGINE})


class Mover(Protocol):
    """Carries moves out, one at a time."""

    def begin(self, decision: Decision) -> None: ...

    def outcome(self) -> TransitionOutcome | None:
        """Of the newest move; None while it is under way."""
        ...


@dataclass(slots=True, kw_only=True)
class _Applied:
    decision: Decision
    tier: Tier
    before_s: float
    """Mean iteration time before it."""
    ended_at: int | None = None
    """Step in which the transition was seen to have ended."""
    cost_s: float = 0.0


class ReplanLoop:
    """Used by one thread at a time."""

    def __init__(
        self,
        policy: ReplanPolicy,
        costs: CostBook,
        mover: Mover,
        *,
        realised_after_steps: int,
        kind_of: Callable[[Plan, Plan], Tier | None] = tier_of,
    ) -> None:
        """`realised_after_steps`: before and after a switch, whose mean times give its realised gain. `kind_of`: whose costs a
        move between two plans is expected to have."""
        self._policy, self._mover, self._window, self._kind_of = policy, mover, realised_after_steps, kind_of
        self.costs, self.errors, self.past = costs, ErrorBook(), PastComparisons()
        self._times: dict[int, float] = {}
        self._moving: _Applied | None = None
        self._unproven: list[_Applied] = []

    @property
    def moving(self) -> Decision | None:
        """Whose transition is under way."""
        return self._moving.decision if self._moving else None

    def observe(self, step: int, t_iter_s: float) -> list[ResolvedDecision]:
        """Learn from a step; returns what is now known of earlier decisions."""
        self._times[step] = t_iter_s
        return [*self._ended(step), *self._proven(at_end=False)]

    def conclude(self) -> list[ResolvedDecision]:
        """The same at the run's end, which closes what is open."""
        return [*self._ended(max(self._times, default=0)), *self._given_up(), *self._proven(at_end=True)]

    def mean_since(self, step: int) -> float | None:
        """Iteration time after this step; None where nothing ran, or more than one plan did."""
        since = [seconds for number, seconds in self._times.items() if number > step]
        switched = self.past.switched_at is not None and self.past.switched_at >= step
        return fmean(since) if since and self._moving is None and not switched else None

    def compare(self, forecast_s: float, measured_s: float) -> None:
        """Iteration times of the same steps."""
        self.errors = self.errors.including(forecast_s, measured_s)

    def facts(self, step: int, steps_left: int, grounding: str = "datasheet") -> ReplanFacts:
        """What proposals are judged with."""
        return ReplanFacts(
            step=step, steps_left=steps_left, costs=self.costs, errors=self.errors, grounding=grounding, kind_of=self._kind_of
        )

    def decide(self, comparisons: Sequence[PlanComparison]) -> Decision:
        decision = choose(comparisons, self._policy, self.past)
        self.past = self.past.after(decision)
        return decision

    def apply(self, decision: Decision) -> None:
        """Begin the transition of a switch; anything else needs nothing."""
        if decision.verdict is not Verdict.SWITCH:
            return
        tier = self._kind_of(decision.current.plan, decision.candidate.plan)
        assert tier is not None
        self._mover.begin(decision)
        self._moving = _Applied(decision=decision, tier=tier, before_s=self._before(decision.step))

    def _ended(self, step: int) -> list[ResolvedDecision]:
        if self._moving is None or (outcome := self._mover.outcome()) is None:
            return []
        applied, self._moving = self._moving, None
        if outcome.applied:
            cost = cost_of(outcome)
            self.costs = self.costs.including(applied.tier, cost)
            applied.ended_at, applied.cost_s = step, cost.total_s
            self._unproven.append(applied)
        else:
            logger.warning("the plan stays as it was: %s", outcome.error)
        return [ResolvedDecision(step=applied.decision.step, outcome=outcome)]

    def _given_up(self) -> list[ResolvedDecision]:
        """A move that the run's end cuts short: whatever it gets to, no step sees it."""
        applied, self._moving = self._moving, None
        return [] if applied is None else [ResolvedDecision(step=applied.decision.step, abandoned=True)]

    def _proven(self, *, at_end: bool) -> list[ResolvedDecision]:
        """Those whose window after the switch is full; a later switch and the run's end close a window early."""
        closes = at_end or self._moving is not None
        proven = [a for a in self._unproven if len(self._after(a)) >= self._window or (closes and self._after(a))]
        self._unproven = [applied for applied in self._unproven if applied not in proven]
        return [_realised(applied, fmean(self._after(applied))) for applied in proven]

    def _after(self, applied: _Applied) -> list[float]:
        """Iteration times from the second one after the switch on; the first began under the old plan."""
        first = (applied.ended_at or 0) + 1
        return [self._times[step] for step in range(first, first + self._window) if step in self._times]

    def _before(self, step: int) -> float:
        """Mean time of the iterations up to this one."""
        return fmean(self._times[number] for number in range(step - self._window + 1, step + 1) if number in self._times)


def cost_of(outcome: TransitionOutcome) -> TransitionCost:
    """Seconds of its phases by kind, as the planner's cost."""
    drain = sum(seconds for verb, seconds in outcome.phases if verb in _DRAINS)
    transfer = sum(seconds for verb, seconds in outcome.phases if verb in _TRANSFERS)
    total = sum(seconds for _, seconds in outcome.phases)
    return TransitionCost(drain_s=drain, transfer_s=transfer, start_s=total - drain - transfer)


def _realised(applied: _Applied, after_s: float) -> ResolvedDecision:
    return ResolvedDecision(
        step=applied.decision.step,
        realised=Realised(
            step=applied.decision.step,
            gain_s_per_step=applied.before_s - after_s,
            t_iter_s=after_s,
            cost_s=applied.cost_s,
        ),
    )
