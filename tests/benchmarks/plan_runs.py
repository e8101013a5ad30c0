"""Whether what is proposed runs: a wide scan of plans against the predicate and the configuration, and sessions of small ones.

    python tests/benchmarks/plan_runs.py [--sessions 14] [--json]

The scan asks the planner over models, sizes, lengths, staleness and backends; every answer and every runner-up must pass
`runnable` and validate as a configuration. A session starts on this host with each small plan, takes two steps and ends; plans
that `runnable` refuses must be refused by the configuration too, and are counted apart. Exit status 1 when anything disagrees.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from libra_core.config import LibraConfig, plan_of
from libra_core.config.loading import process_environment, validate_config
from libra_core.costs.api import load_model
from libra_core.errors import ConfigError, LibraError, ResourceError
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.loading import load_problem
from libra_core.planning.runnable import Backend, runnable
from libra_core.types.forecast import Mode
from support.plan_scan import DENSE, base, refusal

SIZES = ((4, 4), (8, 8), (12, 4), (16, 8), (24, 8), (32, 8), (64, 8))
LENGTHS = ("search_r1", "r2e_gym", "dapo_math")
STEPS = 2
Fragment = dict[str, Any]


def cases() -> Iterator[tuple[dict[str, Any], str, Backend]]:
    routers = cycle(({}, {"router_accuracy": 0.85, "router_tail_recall": 0.7}))
    staleness, batches = cycle((0, 1, 2, 4)), cycle(((8, 8), (3, 4), (32, 16)))
    for model in DENSE:
        for gpus, node in SIZES:
            for lengths in LENGTHS:
                for backend in ("gpu", "simulated", "cpu", "gpu", "simulated"):
                    asked = base(model, backend, gpus, node, lengths=lengths, **next(routers))
                    groups, size = next(batches)
                    asked["rollout"] |= {"staleness": next(staleness), "groups_per_step": groups, "group_size": size}
                    yield asked, model, backend


def scanned() -> dict[str, Any]:
    planned = proposed = asked_for = hybrids = mixed = 0
    wrong: list[str] = []
    for asked, model, backend in cases():
        asked_for += 1
        loaded = load_problem(validate_config(asked))
        try:
            report = plan_resources(loaded.problem)
        except ResourceError:
            continue
        planned += 1
        hybrids += report.best.plan.hybrid_replicas > 0
        mixed += len(dict(report.best.plan.rollout.engines)) > 1
        for plan in (report.best, *report.runner_ups):
            proposed += 1
            against = [*runnable(plan.plan, loaded.model, backend, mode=plan.mode)]
            against += [said] if (said := refusal(asked, plan, loaded.problem.train_shape, load_model(model))) else []
            wrong += [f"{model} on {backend}, {plan.plan}: {reason}" for reason in against]
    return {
        "cases": asked_for,
        "planned": planned,
        "no_plan_fits": asked_for - planned,
        "plans_proposed": proposed,
        "best_with_hybrids": hybrids,
        "best_mixed": mixed,
        "refused": len(wrong),
        "refusals": wrong[:10],
    }


def small_plans() -> dict[str, Fragment]:
    """Of at most four slots: every mode, kind of step, kind of parallelism and kind of fleet."""
    engines = {"one": [(1, 1)], "two": [(1, 2)], "tp 2": [(2, 1)], "mixed": [(1, 1), (2, 1)]}

    def fragment(fleet: str, layout: dict[str, int] | None = None, **more: Any) -> Fragment:
        rollout = {"engines": [{"tp": tp, "count": count} for tp, count in engines[fleet]], **more.pop("rollout", {})}
        return {"rollout": rollout, "training": {"layout": layout or {}, **more.pop("training", {})}, **more}

    streamed, colocated = {"streamed": True}, {"mode": "colocated"}
    return {
        "one engine": fragment("one"),
        "two engines": fragment("two"),
        "engine of tp 2": fragment("tp 2"),
        "mixed fleet": fragment("mixed"),
        "mixed fleet, C-MLFQ": fragment("mixed", routing={"policy": "cmlfq"}),
        "dp 2": fragment("two", {"dp": 2}),
        "tp 2": fragment("one", {"tp": 2}),
        "pp 2": fragment("one", {"pp": 2}),
        "dp 2, engine of tp 2": fragment("tp 2", {"dp": 2}),
        "streamed": fragment("one", training=streamed),
        "synchronous": fragment("one", rollout={"staleness": 0}),
        "colocated": fragment("one", rollout=colocated),
        "colocated, dp 2": fragment("two", {"dp": 2}, rollout=colocated),
        "hybrid": fragment("two", elastic={"hybrid_replicas": 1}),
        "hybrid, streamed": fragment("two", elastic={"hybrid_replicas": 1}, training=streamed),
        "expert parallelism": fragment("one", {"ep": 2}),
        "colocated, streamed": fragment("one", rollout=colocated, training=streamed),
    }


def started(name: str, fragment: Fragment, model: Path, root: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """A session with the plan: its end, or the words against it."""
    from integration.sessions import reports_of, small_config

    began_s = time.monotonic()
    try:
        config: LibraConfig = small_config(model, root, **fragment)
    except ConfigError as error:
        return {"plan": name, "outcome": "refused", "said": str(error)}
    against = runnable(plan_of(config), load_model(str(model)), "cpu", mode=Mode(config.rollout.mode))
    if against:
        return {"plan": name, "outcome": "DISAGREES", "said": "; ".join(against)}
    try:
        steps = len(reports_of(config, root / "run", STEPS))
    except LibraError as error:
        return {"plan": name, "outcome": "FAILED", "said": str(error)}
    say(f"{name}: {steps} steps")
    return {"plan": name, "outcome": "ran" if steps == STEPS else "FAILED", "seconds": round(time.monotonic() - began_s, 1)}


def sessions(limit: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    from integration.sessions import random_policy

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        process_environment(root, quiet=True)
        model = random_policy(root / "policy")
        plans = list(small_plans().items())[:limit]
        return [started(name, fragment, model, root / f"{number}", say) for number, (name, fragment) in enumerate(plans)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=len(small_plans()), help="how many of the small plans to start")
    parser.add_argument("--json", action="store_true", help="no table on stderr")
    arguments = parser.parse_args()

    def say(line: str) -> None:
        if not arguments.json:
            print(line, file=sys.stderr)

    found = scanned()
    say(json.dumps(found, indent=1))
    ran = sessions(arguments.sessions, say)
    outcomes = [row["outcome"] for row in ran]
    passed = not found["refused"] and all(outcome in ("ran", "refused") for outcome in outcomes)
    counts = {"ran": outcomes.count("ran"), "refused": outcomes.count("refused")}
    print(json.dumps({"scan": found, "sessions": {**counts, "rows": ran}, "passed": passed, "cores": os.cpu_count()}))
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
