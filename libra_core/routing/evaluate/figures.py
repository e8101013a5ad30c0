"""What a replay says about a policy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra_core.routing.evaluate.replay import Routed

TAIL_SHARE = 0.1
"""The longest decile of the scored trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One policy on one sequence of trajectories; shares lie in [0, 1]."""

    trajectories: int
    one_hop_accuracy: float
    """Ended in the bucket of their total generated length, having moved at most once."""
    decision_accuracy: float
    """Of all choices, the first ones included, those that named the bucket of the total."""
    macro_f1: float
    """Over the same choices, each bucket that occurs counting alike."""
    tail_recall: float
    """Of the choices made for the longest decile, those that named its bucket or a faster one."""
    majority_one_hop: float
    """What always naming the most common bucket would reach, known in hindsight; likewise the next two."""
    majority_accuracy: float
    majority_f1: float
    migrated_share: float
    """Context tokens carried over by moves, per token of the finished contexts."""
    moves_per_trajectory: float
    regret_s: float
    """Mean charge above the cheapest single bucket per trajectory, known in hindsight."""
    charged_s: float
    """Mean charge per trajectory."""
    decision_us: float
    """Median microseconds of a choice."""


def figures_of(routed: Sequence[Routed]) -> Figures:
    """At least one trajectory."""
    assert routed, "figures need at least one trajectory"
    truth = np.array([item.truth for item in routed])
    repeats = np.array([len(item.decisions) for item in routed])
    chosen = np.array([bucket for item in routed for bucket in item.decisions])
    wanted = np.repeat(truth, repeats)
    common, common_choice = _most_common(truth), _most_common(wanted)
    ended = np.array([item.decisions[-1] for item in routed])
    moves = np.array([item.moves for item in routed])
    return Figures(
        trajectories=len(routed),
        one_hop_accuracy=float(np.mean((ended == truth) & (moves <= 1))),
        decision_accuracy=float(np.mean(chosen == wanted)),
        macro_f1=macro_f1(wanted, chosen),
        tail_recall=_tail_recall(routed, wanted, chosen, repeats),
        majority_one_hop=float(np.mean(truth == common)),
        majority_accuracy=float(np.mean(wanted == common_choice)),
        majority_f1=macro_f1(wanted, np.full_like(wanted, common_choice)),
        migrated_share=sum(item.migrated_tokens for item in routed) / sum(item.final_tokens for item in routed),
        moves_per_trajectory=float(moves.mean()),
        regret_s=float(np.mean([item.regret_s for item in routed])),
        charged_s=float(np.mean([item.charged_s for item in routed])),
        decision_us=float(np.median([spent for item in routed for spent in item.decision_ns])) / 1e3,
    )


def macro_f1(wanted: NDArray[np.int64], chosen: NDArray[np.int64]) -> float:
    """Mean of the F1 of the classes that occur in `wanted`."""
    scores: list[float] = []
    for bucket in np.unique(wanted):
        hits = int(np.sum((wanted == bucket) & (chosen == bucket)))
        scores.append(2 * hits / (int(np.sum(wanted == bucket)) + int(np.sum(chosen == bucket))))
    return float(np.mean(scores))


def _tail_recall(
    routed: Sequence[Routed], wanted: NDArray[np.int64], chosen: NDArray[np.int64], repeats: NDArray[np.int64]
) -> float:
    lengths = np.array([item.generated_tokens for item in routed])
    longest = np.argsort(-lengths, kind="stable")[: max(1, round(TAIL_SHARE * len(lengths)))]
    tail = np.zeros(len(lengths), bool)
    tail[longest] = True
    rows = np.repeat(tail, repeats)
    return float(np.mean(chosen[rows] >= wanted[rows]))


def _most_common(values: NDArray[np.int64]) -> int:
    return int(np.bincount(values).argmax())
