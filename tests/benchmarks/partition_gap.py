"""How much contiguous intervals lose against all assignments of requests to engines, on random small cases.

python tests/benchmarks/partition_gap.py [--cases 300] [--json]
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from libra_core.planning.rollout_partition import solve_partition
from support.partitions import PlainCost, best_assignment, random_cost

DEGREES = (1, 2, 4, 8)
LAWS = {
    "batches unlimited, study coefficients": lambda cost, random: replace(
        cost, most=8, own_s=4.0, shared_s=17.0, per_sequence_s=0.04, per_token_s=1e-4
    ),
    "batches unlimited, any coefficients": lambda cost, random: replace(cost, most=8),
    "at most two at once": lambda cost, random: replace(cost, most=2),
    "one at a time (bin packing)": lambda cost, random: replace(cost, most=1),
}


def gap(cost: PlainCost, requests: int, gpus: int) -> float | None:
    found = solve_partition(requests, DEGREES, gpus, cost)
    return None if found is None else found.makespan_s / best_assignment(cost, requests, DEGREES, gpus) - 1


def row(name: str, cases: int) -> dict[str, object]:
    random = np.random.default_rng(0)
    gaps = []
    while len(gaps) < cases:
        requests, gpus = int(random.integers(2, 8)), int(random.integers(1, 9))
        cost = LAWS[name](random_cost(int(random.integers(2**32)), requests), random)
        value = gap(cost, requests, gpus)
        gaps += [] if value is None else [value]
    values = np.array(gaps)
    return {
        "law": name,
        "cases": cases,
        "equal_share": round(float(np.mean(values < 1e-9)), 4),
        "mean_gap": round(float(values.mean()), 5),
        "p99_gap": round(float(np.quantile(values, 0.99)), 5),
        "largest_gap": round(float(values.max()), 5),
        "least_gap": float(values.min()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [row(name, arguments.cases) for name in LAWS]
    if arguments.json:
        print(json.dumps({"rows": rows}))
        return
    for item in rows:
        print(
            f"{item['law']:40s} equal {item['equal_share']:.1%}  mean {item['mean_gap']:.2%}  p99 {item['p99_gap']:.2%}  "
            f"largest {item['largest_gap']:.2%}  ({item['cases']} cases)"
        )


if __name__ == "__main__":
    main()
