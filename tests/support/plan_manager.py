"""A plan keeper that decides by the project's rule over forecasts given in advance, and whose transitions end one step later."""

from dataclasses import dataclass, field

from libra_core.errors import ConfigError
from libra_core.planning.decision import PastComparisons, PlanComparison, ReplanPolicy, decide
from libra_core.types.decision import Decision, Realised, ResolvedDecision, Verdict
from libra_core.types.profile import RunProfile
from libra_core.types.reports import IterationReport
from libra_core.types.transition import TransitionOutcome
from support.decisions import candidate, comparison, plan


@dataclass(kw_only=True)
class FakePlanManager:
    """`forecasts`: iteration time of the candidate at each look, against 20 s of what runs; by step."""

    forecasts: dict[int, float]
    unmeasured: frozenset[int] = frozenset()
    asked: list[int] = field(default_factory=list)
    """Steps whose look was asked for."""
    moving: Decision | None = None

    def is_due(self, step: int, *, asked: bool = False) -> bool:
        if asked:
            self.asked.append(step)
        return step in self.forecasts or asked

    def profile(self, step: int) -> RunProfile:
        if step in self.unmeasured:
            raise ConfigError("no step of this run has been measured yet")
        return RunProfile(
            step=step,
            measured_steps=step,
            trajectories=8,
            train_s_per_token=1e-3,
            train_fixed_s=0.1,
            between_s=0.2,
            trained_share=1.0,
            decode_ratio=1.2,
            prefill_ratio=0.5,
            decode_batch=4.0,
            publication_s=0.1,
            t_iter_s=2.0,
        )

    def propose(self, profile: RunProfile) -> list[PlanComparison]:
        then_s = self.forecasts.get(profile.step, 19.9)
        return [comparison(candidate(plan(), 20.0), candidate(plan(training=1), then_s), step=profile.step)]

    def decide(self, comparisons: list[PlanComparison]) -> Decision:
        return decide(comparisons[0], ReplanPolicy(), PastComparisons())

    def apply(self, decision: Decision) -> None:
        self.moving = decision if decision.verdict is Verdict.SWITCH else None

    def resolve(self, report: IterationReport | None) -> list[ResolvedDecision]:
        if self.moving is None or (report is not None and report.step <= self.moving.step):
            return []
        step, self.moving = self.moving.step, None
        outcome = TransitionOutcome(plan=plan(training=1), applied=True, seconds=(("join training hybrid-0", 1.5),))
        realised = Realised(step=step, gain_s_per_step=8.0, t_iter_s=12.0, cost_s=1.5)
        return [ResolvedDecision(step=step, outcome=outcome), ResolvedDecision(step=step, realised=realised)]
