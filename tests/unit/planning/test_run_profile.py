"""A run as its own calibration: what was measured is what the planner reckons with."""

from dataclasses import replace
from typing import Any

import pytest

from libra_core.config import plan_of
from libra_core.config.loading import validate_config
from libra_core.costs.api import TrainingLoad, TrainingShape, load_model
from libra_core.errors import ConfigError
from libra_core.planning.experience import CostBook, ErrorBook
from libra_core.planning.problem import ModelShape
from libra_core.planning.proposals import ReplanFacts, propose_in_run
from libra_core.planning.run_costs import run_costs
from libra_core.planning.run_profile import RunMeter, RunSide, measured_engines, measured_trainer, problem_of_run
from libra_core.types.forecast import Term
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import RolloutLayout
from libra_core.types.profile import RunProfile
from libra_core.types.reports import EngineWork, IterationReport
from libra_core.types.transition import Tier, TransitionCost
from support.planning import PlainTrainer, engines_of
from support.reports import iteration_report, rollout_report, time_breakdown, update_report

LAW = engines_of({1: (0.01, 0.001, 0.0, 0.0, 10_000)})
CONFIG = validate_config(
    {
        "rollout": {"engines": [{"tp": 1, "count": 2}], "groups_per_step": 16},
        "elastic": {"hybrid_replicas": 1},
        "planner": {"gpus_per_node": 8},
    }
)
PLAN = plan_of(CONFIG)
LOAD = TrainingLoad(num_sequences=128, tokens=10_000.0, squared_tokens=1e6, longest_tokens=100.0)


def step(number: int, *, train_s: float = 2.0, hybrids: int = 0, work: EngineWork | None = None) -> IterationReport:
    """660 tokens a batch, all of them trained."""
    update = update_report(number, forward_backward_s=train_s, optimizer_s=0.25, hybrid_replicas=hybrids)
    return iteration_report(number, rollout=rollout_report(number), update=update, engines=work)


def measured(*reports: IterationReport, half_life_steps: float = 3.0) -> RunProfile:
    meter = RunMeter(LAW, PLAN, half_life_steps=half_life_steps)
    for report in reports:
        meter.observe(report)
    return meter.profile(len(reports), trajectories=10)


def profile(**changes: Any) -> RunProfile:
    """With one replica's time as given, whatever was measured."""
    return replace(measured(step(0)), **{"train_s_per_token_of": {}, **changes})


def test_training_time_per_token_is_that_of_one_replica_however_many_shared_the_step() -> None:
    alone, shared = measured(step(0, train_s=2.0)), measured(step(0, train_s=1.0, hybrids=1))
    assert alone.train_s_per_token == pytest.approx(shared.train_s_per_token) == pytest.approx(2.0 / 660)
    assert alone.train_fixed_s == pytest.approx(0.25)


def test_newer_steps_count_more() -> None:
    found = measured(step(0, train_s=1.0), step(1, train_s=2.0), half_life_steps=1.0)
    assert found.train_s_per_token == pytest.approx((0.5 * 1.0 + 2.0) / 1.5 / 660)


def test_a_step_that_was_skipped_says_nothing_of_the_trainer() -> None:
    idle = iteration_report(1, update=update_report(1, skipped=True, tokens=0, forward_backward_s=9.0))
    assert measured(step(0), idle).train_s_per_token == measured(step(0)).train_s_per_token
    with pytest.raises(ConfigError, match="no step of this run has been measured yet"):
        measured(idle)


def test_engines_are_the_law_times_what_their_steps_took_over_it() -> None:
    """100 steps of 5 sequences: 15 ms each by the law, 45 ms in truth."""
    found = measured(step(0, work=EngineWork(decode_s=4.5, prefill_s=0.0, steps=100, tokens=500)))
    assert found.decode_ratio == pytest.approx(3.0)
    assert measured_engines(LAW, found, 1.0)[1].step_s(5, 0) == pytest.approx(0.045)


def test_engines_of_each_degree_are_believed_as_they_were_measured_and_others_as_the_newest() -> None:
    """Twice their law at tp 1; at tp 2 four times. An iteration in which both served tells of neither."""
    law = engines_of({tp: (0.01, 0.001, 0.0, 0.0, 10_000) for tp in (1, 2, 4)})
    meter = RunMeter(law, PLAN, half_life_steps=3.0)
    meter.observe(step(0, work=EngineWork(decode_s=3.0, prefill_s=0.0, steps=100, tokens=500)))
    meter.observe(step(1, work=EngineWork(decode_s=90.0, prefill_s=0.0, steps=100, tokens=500)), fleet_changes=True)
    meter.use(replace(PLAN, rollout=RolloutLayout(engines=((2, 1),))))
    before = meter.profile(2, trajectories=10)
    assert before.decode_ratio == pytest.approx(2.0), "the newest that was measured"
    meter.observe(step(2, work=EngineWork(decode_s=6.0, prefill_s=0.0, steps=100, tokens=500)))
    engines = measured_engines(law, meter.profile(3, trajectories=10), 1.0)
    assert [engines[tp].a_s for tp in (1, 2, 4)] == pytest.approx([0.02, 0.04, 0.04])


def test_a_replica_more_halves_the_work_but_not_what_comes_once_a_step() -> None:
    trainer = measured_trainer(PlainTrainer().law, profile(train_s_per_token=1e-3, train_fixed_s=0.2, between_s=0.3))
    one, two = (trainer.estimate(TrainingShape(dp=dp), LOAD).t_train_s for dp in (1, 2))
    assert (one, two) == (pytest.approx(10.5), pytest.approx(5.5))


def test_replicas_that_slow_each_other_down_do_not_make_one_of_them_look_slow() -> None:
    """2 s alone; two on the same cores take 2 s too: going back to one would cost nothing."""
    found = measured(step(0, train_s=2.0), step(1, train_s=2.0, hybrids=1), step(2, train_s=2.0, hybrids=1))
    trainer = measured_trainer(PlainTrainer().law, found)
    load = replace(LOAD, tokens=660.0)
    alone, shared = (trainer.estimate(TrainingShape(dp=dp), load).parts.forward_backward_s for dp in (1, 2))
    assert (alone, shared) == (pytest.approx(2.0), pytest.approx(2.0))
    assert found.train_s_per_token == pytest.approx(2 * 2.0 / 660), "that of the replicas that train now"


def test_a_number_of_replicas_that_no_step_had_is_forecast_from_the_newest_steps() -> None:
    found = measured(step(0, train_s=2.0), step(1, train_s=1.5, hybrids=1))
    estimate = measured_trainer(PlainTrainer().law, found).estimate(TrainingShape(dp=3), replace(LOAD, tokens=660.0))
    assert estimate.parts.forward_backward_s == pytest.approx(2 * 1.5 / 3)


def test_promised_contexts_are_final_ones_so_that_fewer_trajectories_fit() -> None:
    assert measured_engines(LAW, profile(), 1.25)[1].kv_tokens == 8000


@pytest.mark.parametrize(
    ("train_s_per_token", "tool_s", "binds", "better"), [(3e-3, 0.0, Term.TRAINER, True), (1e-5, 4.0, Term.FLEET, False)]
)
def test_a_flip_to_training_pays_when_the_trainer_binds_and_not_when_the_fleet_does(
    train_s_per_token: float, tool_s: float, binds: Term, better: bool
) -> None:
    model = load_model("qwen2.5_3b")
    side = RunSide(
        costs=replace(run_costs(CONFIG, model), engines=engines_of({1: (0.01, 0.001, 0.0, 0.0, 1_000)})),
        model=ModelShape(num_layers=model.num_layers),
        num_gpus=PLAN.num_gpus,
    )
    records = [LengthRecord(prompt_tokens=30, generated_tokens=(10, 10), tool_tokens=(30,), tool_s=(tool_s,), step=0)] * 4
    problem = problem_of_run(CONFIG, side, PLAN, records, profile(train_s_per_token=train_s_per_token, decode_ratio=0.2))
    facts = ReplanFacts(
        step=5,
        steps_left=40,
        costs=CostBook(priors=dict.fromkeys(Tier, TransitionCost(start_s=1.0))),
        errors=ErrorBook(),
    )
    (comparison,) = propose_in_run(problem, PLAN, facts, streamed=True)
    assert comparison.current.forecast.terms.binding is binds
    assert comparison.candidate.plan.hybrids_training == 1
    assert (comparison.candidate.forecast.t_iter_s < comparison.current.forecast.t_iter_s) is better


def test_what_the_core_waits_for_a_slower_replica_is_work_and_not_what_lies_between_steps() -> None:
    """2 s on the core, then 1 s for the replica: the step takes 3 s, as two replicas that need 3 s each."""
    update = update_report(0, forward_backward_s=2.0, hybrid_replicas=1, hybrid_wait_s=1.0)
    slow = iteration_report(0, update=update, breakdown=time_breakdown(trainer_other_s=1.2, trainer_waits_publication_s=0.1))
    found = measured(slow)
    assert found.train_s_per_token == pytest.approx(2 * 3.0 / 660)
    assert found.between_s == pytest.approx(0.3)
