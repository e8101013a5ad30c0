"""CPU seconds of a full solve, warm, beside the recorded times of the authors' planner.

    python tests/benchmarks/planner.py [--repeats 5] [--json]

The problem is Qwen3-14B on A800 nodes of 8 with R2E-Gym-like lengths; `requests` is both the batch and the length history.
"""

import argparse
import json
import math
import os
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from libra_core.config import LibraConfig
from libra_core.config.loading import data_folder, validate_config
from libra_core.costs.api import load_model
from libra_core.errors import ResourceError
from libra_core.planning.example_lengths import LAWS, example_records
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.loading import problem_of
from libra_core.planning.problem import PlanningProblem
from libra_core.planning.run_costs import run_costs

CASES = ((8, 768), (16, 768), (24, 768), (48, 768), (64, 768), (256, 2048), (1024, 4096), (2048, 8192))
BOUNDS = {(48, 768): 0.15, (256, 2048): 0.5, (1024, 4096): 2.0}


def config(gpus: int, requests: int, *, router: bool) -> LibraConfig:
    skill = {"router_accuracy": 0.85, "router_tail_recall": 0.7} if router else {}
    return validate_config(
        {
            "backend": {"kind": "gpu"},
            "model": {"path": "Qwen/Qwen3-14B"},
            "rollout": {
                "groups_per_step": requests // 16,
                "group_size": 16,
                "max_new_tokens": 32768,
                "max_context_tokens": 40960,
                "gpu_memory_utilization": 0.9,
            },
            "training": {"layout": {"distributed_optimizer": True, "recompute": True}},
            "planner": {"nodes": math.ceil(gpus / 8), "num_gpus": gpus, "model": "qwen3_14b", **skill},
        }
    )


def problem(gpus: int, requests: int, *, router: bool) -> PlanningProblem:
    records = example_records(LAWS["r2e_gym"], requests)
    asked, model = config(gpus, requests, router=router), load_model("qwen3_14b")
    return problem_of(asked, records, run_costs(asked, model), model)


def solve_cpu_s(asked: PlanningProblem, repeats: int) -> float:
    """Median over warm solves; the first one fills caches and is not counted."""
    plan_resources(asked)
    times = []
    for _ in range(repeats):
        started = time.process_time()
        plan_resources(asked)
        times.append(time.process_time() - started)
    return sorted(times)[len(times) // 2]


def row(gpus: int, requests: int, repeats: int) -> dict[str, object]:
    plain, mixed = problem(gpus, requests, router=False), problem(gpus, requests, router=True)
    try:
        report = plan_resources(plain)
    except ResourceError as error:
        return {"gpus": gpus, "requests": requests, "no_plan": str(error)}
    bound = BOUNDS.get((gpus, requests))
    seconds = solve_cpu_s(plain, repeats)
    return {
        "gpus": gpus,
        "requests": requests,
        "solve_cpu_s": round(seconds, 4),
        "solve_with_mixed_fleets_cpu_s": round(solve_cpu_s(mixed, repeats), 4),
        "candidates": report.num_candidates,
        "bound_cpu_s": bound,
        "within_bound": None if bound is None else seconds <= bound,
        "train_gpus": report.best.plan.train.num_gpus,
        "engines": dict(report.best.plan.rollout.engines),
    }


def reference_rows() -> list[dict[str, object]]:
    path = data_folder() / "baselines" / "reference_planner.jsonl"
    if not path.exists():
        return []
    keep = ("gpus", "mode", "batch", "status", "wall_s", "rollout_evals")
    return [{name: item.get(name) for name in keep} for item in map(json.loads, path.read_text().splitlines())]


def result(repeats: int) -> dict[str, object]:
    rows = [row(gpus, requests, repeats) for gpus, requests in CASES]
    first, last = rows[3], rows[-1]
    growth = math.log(float(str(last["solve_cpu_s"])) / float(str(first["solve_cpu_s"]))) / math.log(2048 / 48)
    return {
        "rows": rows,
        "growth_exponent_over_gpus": round(growth, 2),
        "reference_planner": reference_rows(),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = result(arguments.repeats)
    if arguments.json:
        print(json.dumps(found))
        return
    for item in found["rows"]:  # type: ignore[attr-defined]
        if "no_plan" in item:
            print(f"{item['gpus']:5d} GPUs x {item['requests']:5d}  {item['no_plan']}")
            continue
        bound = (
            "" if item["bound_cpu_s"] is None else f"  bound {item['bound_cpu_s']} {'ok' if item['within_bound'] else 'MISSED'}"
        )
        print(
            f"{item['gpus']:5d} GPUs x {item['requests']:5d}  {item['solve_cpu_s']:.3f} CPU s, with mixed fleets "
            f"{item['solve_with_mixed_fleets_cpu_s']:.3f}{bound}"
        )
    print(f"growth: CPU time ~ GPUs^{found['growth_exponent_over_gpus']}")
    for item in found["reference_planner"]:  # type: ignore[attr-defined]
        print(f"authors' planner ({item['mode']}, batch {item['batch']}): {item['gpus']} GPUs {item['wall_s']:.1f} s")


if __name__ == "__main__":
    main()
