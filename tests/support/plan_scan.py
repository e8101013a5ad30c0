"""Models, clusters and backends over which every plan that is proposed is asked whether it runs."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle
from typing import Any

from libra_core.config import LibraConfig, plan_of
from libra_core.config.loading import validate_config
from libra_core.costs.api import ModelFacts, load_model
from libra_core.engines.model_folder import check_divides
from libra_core.errors import ConfigError, ResourceError
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.loading import load_problem
from libra_core.planning.runnable import Backend, fragment_of, runnable
from libra_core.types.forecast import Candidate, PlanReport

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


def require_plans_that_run(cases: Iterable[tuple[dict[str, Any], str]], *, planned_at_least: int) -> None:
    """Each answer and each runner-up runs, and is a configuration that validates."""
    planned = with_hybrids = 0
    for asked, model in cases:
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
    assert planned >= planned_at_least
    assert with_hybrids > 0, "hybrid replicas are proposed where they run"
