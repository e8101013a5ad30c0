"""Replanning rounds of a run: when, with which measurements, and what is known afterwards. The session is a stand-in."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from libra_core.config import LibraConfig, plan_of
from libra_core.config.loading import validate_config
from libra_core.costs.api import load_model
from libra_core.errors import ConfigError
from libra_core.planning.problem import ModelShape
from libra_core.planning.replan_loop import cost_of
from libra_core.planning.replanner import Replanner, effective
from libra_core.planning.run_costs import RunCosts, run_costs
from libra_core.types.decision import Decision, Reason, Verdict
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan
from libra_core.types.reports import EngineWork, IterationReport
from libra_core.types.transition import Tier, Transition, TransitionOutcome, Verb
from support.reports import iteration_report, publication_report, rollout_report, update_report

CONFIG = validate_config(
    {
        "rollout": {"engines": [{"tp": 1, "count": 2}], "groups_per_step": 16},
        "training": {"steps": 60},
        "elastic": {"hybrid_replicas": 1},
        "replanning": {"every_steps": 5, "first_step": 4, "cooldown_steps": 5, "flip_cost_s": 10.0, "realised_after_steps": 3},
    }
)
SERVING = plan_of(CONFIG)
TRAINING = replace(SERVING, hybrids_training=1)
MODEL = Path(__file__).parents[2] / "support" / "tiny_model.json"
PHASES = ((Verb.DRAIN_ENGINE, 1.0), (Verb.START_REPLICA, 6.0), (Verb.JOIN, 3.0))


@dataclass
class Session:
    """Controller and rollout pool at once; a transition ends when the test says so."""

    active: Plan = SERVING
    begun: list[Transition] = field(default_factory=list)
    ended: TransitionOutcome | None = None

    def plan(self) -> Plan:
        return self.active

    def begin(self, transition: Transition) -> None:
        self.begun.append(transition)
        self.ended = None

    def outcome(self) -> TransitionOutcome | None:
        return self.ended

    def length_records(self) -> list[LengthRecord]:
        return [LengthRecord(prompt_tokens=30, generated_tokens=(10, 10), tool_tokens=(30,), tool_s=(0.0,), step=0)] * 4

    def end(self, *, applied: bool) -> None:
        move = self.begun[-1]
        self.active = move.target if applied else move.source
        self.ended = TransitionOutcome(plan=self.active, applied=applied, error="" if applied else "no luck", phases=PHASES)


def step(number: int, t_iter_s: float = 8.0, *, train_s: float = 8.0) -> IterationReport:
    """The trainer binds: 128 trajectories of 80 tokens take it 8 s."""
    rollout = rollout_report(number, trajectories=128, prompt_tokens=3840, generated_tokens=2560, tool_tokens=3840)
    update = update_report(number, tokens=10240, forward_backward_s=train_s, optimizer_s=0.01)
    work = EngineWork(decode_s=0.5, prefill_s=0.1, steps=500, tokens=2560)
    publication = publication_report(number + 1, total_s=0.01)
    return iteration_report(number, rollout=rollout, update=update, publication=publication, engines=work, t_iter_s=t_iter_s)


def evaluators(config: LibraConfig) -> tuple[RunCosts, ModelShape]:
    model = load_model(str(MODEL))
    return run_costs(config, model), ModelShape.of(model)


def planner(session: Session, told: list[Plan] | None = None) -> Replanner:
    return Replanner(CONFIG, evaluators(CONFIG), session, session, (told if told is not None else []).append)


def comparison(manager: Replanner, at: int) -> Decision:
    decision = manager.decide(manager.propose(manager.profile(at)))
    manager.apply(decision)
    return decision


def test_looks_are_due_by_count_or_when_asked_for() -> None:
    manager = planner(Session())
    assert [number for number in range(20) if manager.is_due(number)] == [3, 8, 13, 18]
    assert manager.is_due(5, asked=True)


def test_nothing_is_decided_before_a_step_was_measured() -> None:
    with pytest.raises(ConfigError, match="no step of this run has been measured yet"):
        planner(Session()).profile(0)


def test_a_binding_trainer_gets_the_hybrid_and_the_gain_is_realised_later() -> None:
    session = Session()
    manager = planner(session)
    for number in range(4):
        assert manager.resolve(step(number)) == []
    decision = comparison(manager, 3)
    assert (decision.verdict, decision.reason) == (Verdict.SWITCH, Reason.PAYS)
    assert [action.verb for action in session.begun[0].actions] == [
        "drain engine",
        "stop engine",
        "start replica",
        "join training",
    ]
    assert not manager.is_due(8), "a transition is under way"

    assert manager.resolve(step(4)) == []
    session.end(applied=True)
    (ended,) = manager.resolve(step(5))
    assert ended.step == 3
    assert ended.outcome is not None
    assert ended.outcome.applied
    assert [manager.resolve(step(number, 5.0)) for number in (6, 7)] == [[], []]
    (proven,) = manager.resolve(step(8, 5.0))
    assert proven.realised is not None
    assert (proven.realised.gain_s_per_step, proven.realised.t_iter_s, proven.realised.cost_s) == (3.0, 5.0, 10.0)
    assert comparison(manager, 8).cost.total_s == 10.0, "the measured cost, not the prior"


def test_a_transition_that_failed_is_told_and_leaves_the_plan() -> None:
    session = Session()
    manager = planner(session)
    for number in range(4):
        manager.resolve(step(number))
    comparison(manager, 3)
    session.end(applied=False)
    (ended,) = manager.resolve(step(4))
    assert ended.outcome is not None
    assert (ended.outcome.applied, ended.outcome.error) == (False, "no luck")
    assert manager.resolve(None) == [], "what was not applied has no realised gain"
    assert manager.is_due(8)


def test_a_move_that_is_under_way_when_the_run_ends_is_abandoned_and_one_that_has_ended_is_told() -> None:
    for ended in (False, True):
        session = Session()
        manager = planner(session)
        for number in range(4):
            manager.resolve(step(number))
        comparison(manager, 3)
        if ended:
            session.end(applied=True)
        (resolved,) = manager.resolve(None)
        assert (resolved.step, resolved.abandoned, resolved.outcome is not None) == (3, not ended, ended)
        assert manager.resolve(None) == []


def test_the_end_of_the_run_closes_a_window_that_is_not_full() -> None:
    session = Session()
    manager = planner(session)
    for number in range(4):
        manager.resolve(step(number))
    comparison(manager, 3)
    session.end(applied=True)
    manager.resolve(step(4))
    manager.resolve(step(5, 6.0))
    (proven,) = manager.resolve(None)
    assert proven.realised is not None
    assert proven.realised.gain_s_per_step == 2.0
    assert manager.resolve(None) == []


def test_forecasts_are_compared_with_what_ran_and_a_lost_replica_changes_the_plan_that_is_looked_at() -> None:
    session, told = Session(), list[Plan]()
    manager = planner(session, told)
    for number in range(4):
        manager.resolve(step(number, train_s=0.05, t_iter_s=0.1))
    first = comparison(manager, 3)
    assert first.verdict is Verdict.KEEP
    for number in range(4, 9):
        manager.resolve(step(number, train_s=0.05, t_iter_s=10.0))
    assert comparison(manager, 8).forecast_error > 0.5, "the forecast was far below ten seconds"
    session.active = TRAINING
    manager.resolve(step(9))
    assert told == [effective(TRAINING)]
    assert (told[0].train.dp, told[0].rollout.num_engines) == (2, 1)


DIVIDED = validate_config(
    {
        "rollout": {"engines": [{"tp": 1, "count": 4}], "groups_per_step": 16},
        "training": {"steps": 60},
        "replanning": {"repartition": True, "every_steps": 5, "cooldown_steps": 5, "repartition_cost_s": 45.0},
    }
)


def test_a_run_without_hybrids_looks_at_other_degrees_at_the_cost_of_their_kind() -> None:
    session, told = Session(active=plan_of(DIVIDED)), list[Plan]()
    manager = Replanner(DIVIDED, evaluators(DIVIDED), session, session, told.append)
    for number in range(4):
        manager.resolve(step(number))
    comparisons = manager.propose(manager.profile(3))
    assert [dict(comparison.candidate.plan.rollout.engines) for comparison in comparisons] == [{2: 2}, {4: 1}]
    assert [comparison.cost.total_s for comparison in comparisons] == [45.0, 45.0]
    assert "kernels of" in comparisons[0].grounding

    other = comparisons[0].candidate.plan
    paying = replace(
        manager.decide(comparisons), verdict=Verdict.SWITCH, candidate=comparisons[0].candidate, tier=Tier.REPARTITION
    )
    manager.apply(paying)
    assert [action.target for action in session.begun[0].actions if action.verb is Verb.START_ENGINE] == ["engine-4", "engine-5"]
    session.end(applied=True)
    manager.resolve(step(4))
    assert told == [other], "forecasts follow the engines"
    manager.resolve(step(5))
    assert manager.profile(5).decode_ratio_of.keys() == {1, 2}
    back = manager.propose(manager.profile(5))[0]
    assert back.candidate.plan == plan_of(DIVIDED)
    assert back.cost.total_s == sum(seconds for _, seconds in PHASES), "as it was measured"


def test_a_fleet_for_which_there_is_no_other_degree_is_told() -> None:
    alone = DIVIDED.model_copy(update={"replanning": DIVIDED.replanning.model_copy(update={"repartition": False})})
    session = Session(active=plan_of(alone))
    manager = Replanner(alone, evaluators(alone), session, session)
    manager.resolve(step(0))
    with pytest.raises(ConfigError, match="nothing can move"):
        manager.propose(manager.profile(0))


def test_seconds_of_phases_are_divided_by_kind() -> None:
    cost = cost_of(TransitionOutcome(plan=SERVING, applied=True, phases=PHASES))
    assert (cost.drain_s, cost.transfer_s, cost.start_s) == (1.0, 3.0, 6.0)


def test_a_resumed_run_expects_what_transitions_cost_before() -> None:
    session = Session()
    manager = planner(session)
    for number in range(4):
        manager.resolve(step(number))
    comparison(manager, 3)
    session.end(applied=True)
    manager.resolve(step(4))
    resumed = planner(Session())
    resumed.resume(manager.experience)
    for number in range(4):
        resumed.resolve(step(number))
    assert comparison(resumed, 3).cost == cost_of(TransitionOutcome(plan=TRAINING, applied=True, phases=PHASES))
