"""Plans, forecasts and looks as values, for tests of the replanning rule."""

from libra_core.planning.decision import PlanComparison
from libra_core.types.forecast import Candidate, Forecast, Mode, Term, Terms
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from libra_core.types.transition import TransitionCost


def plan(*, training: int = 0, engines: int = 6, dp: int = 2, tp: int = 1) -> Plan:
    rollout = RolloutLayout(engines=((tp, engines),))
    return Plan(train=TrainLayout(dp=dp), rollout=rollout, hybrid_replicas=2, hybrids_training=training)


def candidate(of: Plan, t_iter_s: float, *, binding: Term = Term.TRAINER, others_s: float = 1.0) -> Candidate:
    """The binding term alone sets the iteration time."""
    seconds = {term: t_iter_s if term is binding else others_s for term in Term}
    terms = Terms(
        trainer_s=seconds[Term.TRAINER],
        fleet_s=seconds[Term.FLEET],
        slowest_s=seconds[Term.SLOWEST_TRAJECTORY],
        group_s=seconds[Term.GROUP_LATENCY],
    )
    forecast = Forecast(
        t_iter_s=t_iter_s,
        t_train_s=terms.trainer_s,
        t_rollout_s=terms.fleet_s,
        slowest_trajectory_s=1.0,
        tokens_per_s=1.0,
        terms=terms,
        publication_s=0.0,
        engine_batch=1.0,
        train_bytes_per_gpu=0.0,
        rollout_bytes_per_gpu=0.0,
    )
    return Candidate(mode=Mode.ASYNCHRONOUS, streamed=True, plan=of, slots_per_engine=((1, 4),), forecast=forecast)


def comparison(
    current: Candidate, other: Candidate, *, step: int = 100, steps_left: int = 10_000, cost_s: float = 60.0
) -> PlanComparison:
    cost = TransitionCost(drain_s=cost_s / 2, start_s=cost_s / 2)
    return PlanComparison(step=step, steps_left=steps_left, current=current, candidate=other, cost=cost, forecast_error=0.08)
