"""What routing gains over least-loaded on a fixed mixed fleet (8 TP1 + 4 TP2 + 2 TP4 = 24 GPUs), beside homogeneous fleets.

    python tests/benchmarks/mixed_fleet.py [--seeds 5] [--steps 20] [--workload search] [--policy expected_cost] [--json]

An event simulation (`tests/support/mixed_fleet_world.py`) of asynchronous GRPO, staleness 1, 16 groups of 16, training on 24 more
GPUs; every routing choice is made by the product's own policies. Bucket limits cut the generated tokens of a warm-up batch in
proportion to what the buckets can decode; intervals are 95 % t-intervals of the ratio over paired seeds.
"""

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from libra_core.routing.buckets import Buckets
from libra_core.routing.build import POLICIES, RouterSetup, build_policy
from libra_core.routing.costs import CostTable
from libra_core.routing.evaluate.evaluation import half_width
from libra_core.routing.evaluate.recorded import RecordedTrajectory
from support.fleet_workloads import LAWS as WORKLOADS
from support.fleet_workloads import fleet_groups
from support.mixed_fleet_world import LAWS, FleetResult, MixedFleetWorld, Pace, expected_context, slots_of

MIXED = ((1, 8), (2, 4), (4, 2))
HOMOGENEOUS = (((1, 24),), ((2, 12),), ((4, 6),), ((8, 3),))
PROMPTS = 80
"""Distinct prompts: each is visited every fifth step."""
BASE = "least_loaded"
WITHOUT_TEXT = [policy for policy in POLICIES if policy != "embedding"]
"""Generated prompts have no text to embed."""


@dataclass(frozen=True, slots=True)
class Case:
    """One workload with one seed."""

    groups: list[list[RecordedTrajectory]]
    warm_up: list[RecordedTrajectory]
    pace: Pace
    seed: int


def make_case(name: str, steps: int, seed: int) -> Case:
    pace = Pace(steps=steps)
    groups = fleet_groups(name, groups=16 * (steps + 1), group=16, prompts=PROMPTS, seed=300 + seed)
    warm_up = [member for group in fleet_groups(name, groups=16, group=16, prompts=16, seed=900 + seed) for member in group]
    return Case(groups, warm_up, pace, seed)


def step_s(tp: int, context: float) -> float:
    """Decode step with the slots half full."""
    law, batch = LAWS[tp], slots_of(tp, context) / 2
    return law.a_s + law.b_s * batch + law.c_s * batch * context


def fleet_costs(warm_up: list[RecordedTrajectory], fleet: tuple[tuple[int, int], ...]) -> CostTable:
    """Limits at which the generated tokens below them match the share of the fleet's decoding speed."""
    context = expected_context([warm_up])
    lengths = np.sort([float(item.generated_tokens) for item in warm_up])
    speed = np.array([count * slots_of(tp, context) / 2 / step_s(tp, context) for tp, count in fleet])
    done = np.cumsum(lengths) / lengths.sum()
    cuts = np.searchsorted(done, np.cumsum(speed)[:-1] / speed.sum())
    limits = tuple(float(lengths[min(cut, len(lengths) - 1)]) for cut in cuts)
    return CostTable(
        buckets=Buckets(degrees=tuple(tp for tp, _ in fleet), limits=(*limits, float("inf"))),
        step_s=tuple(step_s(tp, context) for tp, _ in fleet),
        growth=tuple((LAWS[tp].b_s + LAWS[tp].c_s * context) / LAWS[tp].a_s for tp, _ in fleet),
        move_s_per_token=tuple(LAWS[tp].prefill_s for tp, _ in fleet),
        lengths=tuple(lengths),
    )


def run(case: Case, fleet: tuple[tuple[int, int], ...], policy_name: str) -> FleetResult:
    totals = {item.name: item.generated_tokens for group in case.groups for item in group}
    costs = fleet_costs(case.warm_up, fleet)
    setup = RouterSetup(buckets=costs.buckets, costs=costs, seed=case.seed, total_tokens=lambda identity: totals[str(identity)])
    return MixedFleetWorld(case.groups, fleet, build_policy(policy_name, setup), case.pace).run()


def rows_of(name: str, cases: list[Case], policies: list[str]) -> list[dict[str, object]]:
    results = {policy: [run(case, MIXED, policy) for case in cases] for policy in dict.fromkeys([BASE, *policies])}
    for fleet in HOMOGENEOUS:
        label = f"homogeneous {fleet[0][1]} x TP{fleet[0][0]}, {BASE}"
        results[label] = [run(case, fleet, BASE) for case in cases]
    return [row(name, label, found, results[BASE]) for label, found in results.items()]


def row(name: str, label: str, found: list[FleetResult], base: list[FleetResult]) -> dict[str, object]:
    gains = [item.tokens_per_s / other.tokens_per_s for item, other in zip(found, base, strict=True)]
    return {
        "workload": name,
        "policy": label,
        "gain": round(float(np.mean(gains)), 4),
        "interval": round(half_width(gains), 4),
        "tokens_per_s": round(float(np.mean([item.tokens_per_s for item in found])), 1),
        "step_s": round(float(np.mean([item.step_s for item in found])), 1),
        "migrated_share": round(float(np.mean([item.migrated_share for item in found])), 4),
        "lost": sum(item.unfinished for item in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS))
    parser.add_argument("--policy", action="append", choices=WITHOUT_TEXT)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    started = time.process_time()
    rows: list[dict[str, object]] = []
    for name in arguments.workload or WORKLOADS:
        cases = [make_case(name, arguments.steps, seed) for seed in range(arguments.seeds)]
        rows += rows_of(name, cases, arguments.policy or WITHOUT_TEXT)
        if not arguments.json:
            show([item for item in rows if item["workload"] == name])
    if arguments.json:
        facts = {"fleet": MIXED, "pace": asdict(Pace(steps=arguments.steps)), "seeds": arguments.seeds}
        print(json.dumps({"rows": rows, **facts, "machine": platform.platform(), "cpu_s": round(time.process_time() - started)}))


def show(rows: list[dict[str, object]]) -> None:
    for item in rows:
        print(
            f"{item['workload']:7} {item['policy']:34} x{item['gain']:.3f} ± {item['interval']:.3f}  "
            f"{item['tokens_per_s']:8.0f} tokens/s  step {item['step_s']:6.1f} s  migrated {item['migrated_share']:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
