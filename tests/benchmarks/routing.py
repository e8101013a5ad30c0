"""Latency, memory and load time of the router.

    python tests/benchmarks/routing.py [--trajectories 100000] [--json]

Trajectories of 12 turns, 16 samples per prompt, 8 kinds of tool returns. A decision is `choose` of `expected_cost` over a fleet
of 14 engines in 3 buckets; an update is `learn` of one whole trajectory. Latencies are wall time of single calls.
"""

import argparse
import gc
import json
import os
import platform
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.build import RouterSetup, build_policy
from libra_core.routing.costs import table_for
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.routing.tree_file import load_tree, save_tree
from libra_core.types.ids import EngineId, PromptId, TrajectoryId
from libra_core.types.trajectory import ToolOutcome, ToolStatus

TURNS = 12
SAMPLES = 16
OUTCOMES = tuple(
    ToolOutcome(tool=tool, status=status, payload_tokens=tokens)
    for tool in ("bash", "search")
    for status in (ToolStatus.OK, ToolStatus.TIMEOUT)
    for tokens in (50, 5000)
)
FLEET = ((1, 8, 0), (2, 4, 1), (4, 2, 2))
TARGETS = {"decision_p50_us": 20.0, "decision_p99_us": 100.0, "update_p50_us": 40.0, "memory_mib": 300.0, "load_s": 10.0}


def trajectory(number: int, rng: random.Random) -> FinishedTrajectory:
    prompt = number // SAMPLES
    scale = 50 + 37 * (prompt % 29)
    return FinishedTrajectory(
        trajectory_id=TrajectoryId(f"t{number}"),
        prompt_id=PromptId(f"p{prompt}"),
        turn_tokens=[1 + int(rng.expovariate(1 / scale)) for _ in range(TURNS)],
        tool_returns=[OUTCOMES[min(7, int(rng.expovariate(0.7)))] for _ in range(TURNS - 1)],
    )


def engines(rng: random.Random) -> list[EngineLoad]:
    return [
        EngineLoad(engine_id=EngineId(f"tp{tp}-{i}"), tp=tp, bucket=bucket, in_flight=rng.randrange(30), capacity=64)
        for tp, count, bucket in FLEET
        for i in range(count)
    ]


def decisions_us(tree: PrefixTree, count: int, known: int, rng: random.Random) -> list[float]:
    """Over live trajectories of prompts that the tree has seen."""
    buckets = Buckets(degrees=(1, 2, 4), limits=(4000.0, 9000.0, float("inf")))
    costs = table_for(buckets, sorted(rng.lognormvariate(8.3, 0.7) for _ in range(2000)))
    policy = build_policy("expected_cost", RouterSetup(buckets=buckets, costs=costs, tree=tree))
    found: list[float] = []
    fleet = engines(rng)
    while len(found) < count:
        sample = trajectory(rng.randrange(known), rng)
        returns: list[ToolOutcome] = []
        current: EngineId | None = None
        generated = 0
        for turn in range(TURNS):
            context = TurnContext(
                trajectory_id=sample.trajectory_id,
                kind="",
                order=0,
                current=current,
                context_tokens=500 + generated,
                tool_returns=returns,
                prompt_id=sample.prompt_id,
                generated_tokens=generated,
            )
            started = time.perf_counter_ns()
            current = policy.choose(context, fleet)
            found.append((time.perf_counter_ns() - started) / 1e3)
            generated += sample.turn_tokens[turn]
            if turn < TURNS - 1:
                returns.append(sample.tool_returns[turn])
        policy.forget(sample.trajectory_id)
    return found


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def result(trajectories: int) -> dict[str, object]:
    rng = random.Random(0)
    samples = [trajectory(number, rng) for number in range(trajectories)]
    gc.collect()
    gc.disable()  # the benchmark's own million objects would be scanned at random moments
    before = psutil.Process().memory_info().rss
    tree, updates = PrefixTree(), list[float]()
    for sample in samples:
        started = time.perf_counter_ns()
        tree.learn(sample)
        updates.append((time.perf_counter_ns() - started) / 1e3)
    memory = psutil.Process().memory_info().rss - before
    decisions = decisions_us(tree, 24_000, trajectories, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree.bin"
        started = time.perf_counter()
        save_tree(tree, path)
        save_s = time.perf_counter() - started
        size = path.stat().st_size
        started = time.perf_counter()
        loaded = load_tree(path)
        load_s = time.perf_counter() - started
    found: dict[str, object] = {
        "trajectories": trajectories,
        "nodes": len(tree.table),
        "decision_p50_us": round(quantile(decisions, 0.5), 1),
        "decision_p99_us": round(quantile(decisions, 0.99), 1),
        "update_p50_us": round(quantile(updates, 0.5), 1),
        "update_p99_us": round(quantile(updates, 0.99), 1),
        "update_per_turn_p50_us": round(quantile(updates, 0.5) / TURNS, 2),
        "update_max_ms": round(max(updates) / 1e3, 1),
        "memory_mib": round(memory / 2**20, 1),
        "file_mib": round(size / 2**20, 1),
        "save_s": round(save_s, 2),
        "load_s": round(load_s, 2),
        "loaded_nodes": len(loaded.table),
    }
    met = {name: float(str(found[name])) <= bound for name, bound in TARGETS.items()}
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return found | {"targets": TARGETS, "met": met, "machine": machine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = result(arguments.trajectories)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24s} {value}")


if __name__ == "__main__":
    main()
