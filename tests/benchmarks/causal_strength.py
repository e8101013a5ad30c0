"""Accuracy of every routing policy over the strength of the causal signal, on a generated workload with known truth.

    python tests/benchmarks/causal_strength.py [--strength 0.9] [--policy expected_cost] [--figure curve.svg] [--json]

The generator and its assumptions: `libra_core/simulation/workload/causal.py`. Four epochs over 40 prompts, 8 samples a visit, in
GRPO-like order; the first epoch's first part is learnt from unrouted. `oracle` knows lengths.
"""

import argparse
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from libra_core.engines.sentence_model import sentence_embedder
from libra_core.routing.build import POLICIES
from libra_core.routing.evaluate.evaluation import EvaluationSettings, evaluate
from libra_core.simulation.workload.causal import CausalWorkload, causal_trajectories

STRENGTHS = (0.0, 0.5, 0.8, 0.9, 1.0)
PAPER = {"cmlfq": 0.911, "embedding": 0.652, "mlfq": 0.448, "migrated": 0.082}
"""One-hop accuracy and share of tokens migrated that the paper reports (Search-R1; docs/references.md#the-paper)."""


def rows_of(strength: float, settings: EvaluationSettings) -> list[dict[str, object]]:
    workload = CausalWorkload(strength=strength)
    rows = evaluate("causal", causal_trajectories(workload), replace(settings, limits=workload.limits))
    return [
        {
            "strength": strength,
            "policy": row.policy,
            "one_hop_accuracy": round(row.figures.one_hop_accuracy, 4),
            "decision_accuracy": round(row.figures.decision_accuracy, 4),
            "macro_f1": round(row.figures.macro_f1, 4),
            "migrated_share": round(row.figures.migrated_share, 4),
            "moves": round(row.figures.moves_per_trajectory, 3),
            "regret_s": round(row.figures.regret_s, 2),
            "majority_one_hop": round(row.figures.majority_one_hop, 4),
        }
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strength", type=float, action="append")
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument("--shuffles", type=int, default=1)
    parser.add_argument("--start", choices=("smallest", "predicted"), default="predicted")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    settings = EvaluationSettings(
        policies=tuple(arguments.policy or POLICIES),
        orders=("grpo",),
        epochs=4,
        shuffles=arguments.shuffles,
        warm_up=0.1,
        in_flight=64,
        start=arguments.start,
        embed=sentence_embedder(),
    )
    rows: list[dict[str, object]] = []
    for strength in arguments.strength or STRENGTHS:
        rows += rows_of(strength, settings)
        if not arguments.json:
            show([item for item in rows if item["strength"] == strength])
    if arguments.figure:
        draw(rows, arguments.figure)
    if arguments.json:
        print(json.dumps({"rows": rows, "paper": PAPER, "machine": platform.platform()}))


def show(rows: list[dict[str, object]]) -> None:
    for item in rows:
        print(
            f"strength {item['strength']:.2f} {item['policy']:14} one-hop {item['one_hop_accuracy']:.3f}  decisions "
            f"{item['decision_accuracy']:.3f}  F1 {item['macro_f1']:.3f}  migrated {item['migrated_share']:.1%}  "
            f"moves {item['moves']:.2f}  regret {item['regret_s']:.2f} s",
            flush=True,
        )


def draw(rows: list[dict[str, object]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.5))
    for policy in dict.fromkeys(item["policy"] for item in rows):
        points = [(item["strength"], item["one_hop_accuracy"]) for item in rows if item["policy"] == policy]
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=policy)
    axis.axhline(PAPER["cmlfq"], linestyle=":", color="grey")
    axis.set_xlabel("strength of the causal signal")
    axis.set_ylabel("one-hop accuracy")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
