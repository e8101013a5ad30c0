"""What is proposed runs: the predicate, the configuration's own checks and the answers of the planner agree."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.config.loading import validate_config
from libra_core.costs.api import TrainingShape, load_model
from libra_core.errors import ResourceError
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.loading import load_problem
from libra_core.planning.runnable import Backend, runnable
from libra_core.types.forecast import Mode
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from support.decisions import candidate
from support.plan_scan import DENSE, base, refusal, require_plans_that_run, scan

BACKENDS: tuple[Backend, ...] = ("gpu", "simulated", "cpu")


def test_every_answer_and_runner_up_of_a_scan_runs_and_is_a_configuration_that_validates() -> None:
    """A third of them: every model on every cluster, and each backend, workload and staleness with and without a measured router.
    tests/integration/test_plan_scan.py has the rest."""
    require_plans_that_run(scan()[1::3], planned_at_least=40)


@given(
    tp=st.sampled_from([1, 2, 3, 4, 8]),
    pp=st.sampled_from([1, 2, 4, 5]),
    engines=st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), min_size=1, max_size=2),
    hybrids=st.integers(0, 3),
    mode=st.sampled_from(list(Mode)),
    backend=st.sampled_from(BACKENDS),
    model=st.sampled_from(DENSE),
)
@settings(max_examples=150, deadline=None)
def test_the_predicate_refuses_what_the_configuration_and_the_model_folder_refuse(
    tp: int, pp: int, engines: dict[int, int], hybrids: int, mode: Mode, backend: Backend, model: str
) -> None:
    plan = Plan(train=TrainLayout(tp=tp, pp=pp), rollout=RolloutLayout.of(engines.items()), hybrid_replicas=hybrids)
    facts, asked, shape = load_model(model), base(model, backend, 16, 8), TrainingShape()
    of = replace(candidate(plan, 1.0), mode=mode)
    against = runnable(plan, facts, backend, mode=mode)
    assert bool(against) == bool(refusal(asked, of, shape, facts)), (against, refusal(asked, of, shape, facts))


@pytest.mark.parametrize(("layout", "word"), [(TrainLayout(tp=2, cp=2), "context"), (TrainLayout(tp=2, dp=2, ep=2), "expert")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_parallelism_that_no_session_trains_is_refused_everywhere(layout: TrainLayout, word: str, backend: Backend) -> None:
    plan = Plan(train=layout, rollout=RolloutLayout(engines=((2, 1),)))
    assert any(word in reason for reason in runnable(plan, load_model("qwen3_14b"), backend))


def test_a_faster_plan_that_is_not_run_is_a_note_beside_the_best_that_is() -> None:
    asked = base("qwen3_4b", "gpu", 8, 8, lengths="dapo_math")
    asked["rollout"] |= {"staleness": 0}
    report = plan_resources(load_problem(validate_config(asked)).problem)
    assert report.best.mode is Mode.ASYNCHRONOUS
    assert report.against == ()
    assert any("colocated would take" in note and "does not run it: colocated mode" in note for note in report.notes)


def test_a_cluster_on_which_nothing_runs_has_no_plan() -> None:
    with pytest.raises(ResourceError, match=r"no plan that this version runs fits 8 GPUs; .* would take .* s \(colocated mode"):
        plan_resources(load_problem(validate_config(base("qwen3_14b", "gpu", 8, 8, lengths="r2e_gym"))).problem)


def test_a_model_that_no_session_trains_has_a_plan_that_says_so() -> None:
    report = plan_resources(load_problem(validate_config(base("qwen3_30b_a3b", "gpu", 16, 8))).problem)
    assert any("mixture of experts" in reason for reason in report.against)
    assert any(note.startswith("no plan that this version runs was found") for note in report.notes)
