"""What is proposed runs: the predicate, the configuration's own checks and the answers of the planner agree."""

from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.config import LibraConfig, plan_of
from libra_core.config.loading import validate_config
from libra_core.costs.api import ModelFacts, TrainingShape, load_model
from libra_core.engines.model_folder import check_divides
from libra_core.errors import ConfigError, ResourceError
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.loading import load_problem
from libra_core.planning.runnable import Backend, fragment_of, runnable
from libra_core.types.forecast import Candidate, Mode, PlanReport
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from support.decisions import candidate

BACKENDS: tuple[Backend, ...] = ("gpu", "simulated", "cpu")
SCANNED: tuple[Backend, ...] = ("gpu", "simulated", "gpu")
DENSE = ("qwen3_4b", "qwen2.5_7b", "llama3_8b", "qwen2.5_3b", "qwen3_14b")
SIZES = ((8, 8), (12, 4), (16, 8), (24, 8), (32, 8), (16, 4))


def base(model: str, backend: Backend, gpus: int, node: int, **planner: Any) -> dict[str, Any]:
    return {
        "backend": {"kind": backend},
        "model": {"path": "a-folder"},
        "rollout": {
            "groups_per_step": 8,
            "group_size": 8,
            "max_new_tokens": 4096,
            "max_context_tokens": 8192,
            "kv_cache_mib": 8192,
        },
        "training": {"layout": {"distributed_optimizer": True, "recompute": True}},
        "planner": {"model": model, "nodes": -(-gpus // node), "gpus_per_node": node, "num_gpus": gpus, **planner},
    }


def merged(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    return {**whole, **{key: {**whole.get(key, {}), **value} for key, value in part.items()}}


def refusal(asked: dict[str, Any], of: Candidate, shape: Any, facts: ModelFacts) -> str:
    """What the configuration and the check of a model folder say against a candidate."""
    try:
        config: LibraConfig = validate_config(merged(asked, fragment_of(of, shape)))
        if config.backend.kind != "simulated":
            check_divides(facts, layout=config.training.layout, engine_degrees=plan_of(config).rollout.degrees)  # type: ignore[arg-type]
    except ConfigError as error:
        return str(error)
    train = of.plan.train
    assert plan_of(config) == replace(of.plan, train=replace(train, cp=1, ep=1)), "the fragment asks for the plan"
    return ""


def scan() -> list[tuple[dict[str, Any], str]]:
    """A hundred and more: models, clusters, backends, lengths, staleness, with and without a measured router."""
    routers = cycle(({}, {"router_accuracy": 0.85, "router_tail_recall": 0.7}))
    lengths, staleness = cycle(("search_r1", "r2e_gym", "dapo_math")), cycle((0, 1, 2, 4))
    cases: list[tuple[dict[str, Any], str]] = []
    for model in DENSE:
        for gpus, node in SIZES:
            for backend in SCANNED:
                asked = base(model, backend, gpus, node, lengths=next(lengths), **next(routers))
                asked["rollout"]["staleness"] = next(staleness)
                cases.append((asked, model))
            asked = base(model, "gpu", gpus, node, lengths="search_r1")
            asked["rollout"] |= {"groups_per_step": 3, "group_size": 4}
            cases.append((asked, model))
    return cases


def test_every_answer_and_runner_up_of_a_scan_runs_and_is_a_configuration_that_validates() -> None:
    planned = with_hybrids = 0
    for asked, model in scan():
        loaded = load_problem(validate_config(asked))
        try:
            report: PlanReport = plan_resources(loaded.problem)
        except ResourceError:
            continue
        planned += 1
        with_hybrids += report.best.plan.hybrid_replicas > 0
        assert report.against == ()
        for proposed in (report.best, *report.runner_ups):
            assert runnable(proposed.plan, loaded.model, asked["backend"]["kind"], mode=proposed.mode) == ()
            assert refusal(asked, proposed, loaded.problem.train_shape, load_model(model)) == ""
    assert planned >= 100
    assert with_hybrids > 0, "hybrid replicas are proposed where they run"


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
        plan_resources(load_problem(validate_config(base("qwen3_14b", "gpu", 8, 8))).problem)


def test_a_model_that_no_session_trains_has_a_plan_that_says_so() -> None:
    report = plan_resources(load_problem(validate_config(base("qwen3_30b_a3b", "gpu", 16, 8))).problem)
    assert any("mixture of experts" in reason for reason in report.against)
    assert any(note.startswith("no plan that this version runs was found") for note in report.notes)
