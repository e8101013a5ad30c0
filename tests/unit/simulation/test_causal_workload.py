"""The causal workload is what its module says."""

from collections import Counter
from dataclasses import replace

import pytest

from libra_core.routing.buckets import Buckets
from libra_core.simulation.workload.causal import CausalWorkload, causal_trajectories

SMALL = CausalWorkload(prompts=40, samples=10)


def returns(strength: float, count: int) -> list[tuple[object, ...]]:
    """First `count` tool returns of every trajectory with its class by length."""
    workload = replace(SMALL, strength=strength)
    buckets = Buckets(degrees=(1, 2, 4, 8), limits=(*workload.limits, float("inf")))
    return [
        (buckets.of(item.generated_tokens), *((turn.tool, turn.status, turn.payload_tokens) for turn in item.turns[:count]))
        for item in causal_trajectories(workload)
    ]


def test_the_same_seed_gives_the_same_trajectories() -> None:
    assert causal_trajectories(SMALL, 3) == causal_trajectories(SMALL, 3)
    assert causal_trajectories(SMALL, 3) != causal_trajectories(SMALL, 4)
    assert len(causal_trajectories(SMALL)) == 400


def explained(strength: float, count: int) -> float:
    """Share of trajectories whose class is the most common one after the same returns."""
    groups: dict[tuple[object, ...], Counter[object]] = {}
    for own, *seen in returns(strength, count):
        groups.setdefault(tuple(seen), Counter())[own] += 1
    return sum(group.most_common(1)[0][1] for group in groups.values()) / 400


def test_two_returns_decide_the_class_at_full_strength_and_one_halves_it() -> None:
    assert explained(1.0, 0) < 0.4
    assert 0.4 < explained(1.0, 1) < 0.75
    assert explained(1.0, 2) > 0.95


def test_a_return_says_less_the_weaker_the_signal() -> None:
    shares = [explained(strength, 1) for strength in (0.0, 0.5, 1.0)]
    assert shares == sorted(shares)


def test_a_prompt_leans_as_much_as_asked() -> None:
    for signal in (0.0, 1.0):
        classes: dict[str, Counter[int]] = {}
        workload = replace(SMALL, prompt_signal=signal, samples=20)
        buckets = Buckets(degrees=(1, 2, 4, 8), limits=(*workload.limits, float("inf")))
        for item in causal_trajectories(workload):
            classes.setdefault(item.prompt_id, Counter())[buckets.of(item.generated_tokens)] += 1
        leaning = sum(counter.most_common(1)[0][1] for counter in classes.values()) / (40 * 20)
        assert (leaning > 0.93) if signal else (leaning < 0.55)


def test_probabilities_are_checked() -> None:
    with pytest.raises(ValueError, match=r"strength is 1\.5"):
        CausalWorkload(strength=1.5)
