"""Intervals of paired comparisons: seeds and stretches of steps are drawn again, the same for both systems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra_core.simulation.study.summary import StepView

Floats = NDArray[np.float64]

BLOCK_STEPS = 10
_FEWEST_BLOCKS = 4
"""A short run is cut finer, or its interval would be none."""
_DRAWS = 2000
_OUTSIDE = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One run, step by step; arrays `[steps]`."""

    tokens: Floats
    seconds: Floats

    @classmethod
    def of(cls, steps: Sequence[StepView], batch: int) -> "Pace":
        return cls(
            tokens=batch * np.array([step.generated_per_trajectory for step in steps]),
            seconds=np.array([step.t_iter_s for step in steps]),
        )


def rate(runs: Sequence[Pace]) -> Interval:
    """Tokens per second over all runs of one system."""
    return _interval([_draw(runs, draw) for draw in _draws(runs)], _mean_rate(runs))


def ratio(runs: Sequence[Pace], over: Sequence[Pace]) -> Interval:
    """Tokens per second of a system over another's, seed by seed and stretch by stretch."""
    values = [_draw(runs, draw) / _draw(over, draw) for draw in _draws(runs)]
    return _interval(values, _mean_rate(runs) / _mean_rate(over))


def mean_ratio(pairs: Mapping[str, tuple[Sequence[Pace], Sequence[Pace]]]) -> Interval:
    """Mean of the workloads' ratios, each drawn for itself."""
    drawn: list[list[float]] = []
    for runs, over in pairs.values():
        drawn.append([_draw(runs, draw) / _draw(over, draw) for draw in _draws(runs)])
    point = float(np.mean([_mean_rate(runs) / _mean_rate(over) for runs, over in pairs.values()]))
    return _interval(np.mean(drawn, axis=0).tolist(), point)


Draw = Sequence[tuple[int, NDArray[np.intp]]]
"""Of each drawn seed, the steps that count, with repetition."""


def _draws(runs: Sequence[Pace]) -> list[Draw]:
    random = np.random.default_rng(0)
    steps = min(run.seconds.size for run in runs)
    blocks = max(min(_FEWEST_BLOCKS, steps), steps // BLOCK_STEPS)
    parts = [part.astype(np.intp) for part in np.array_split(np.arange(steps), blocks)]
    draws: list[Draw] = []
    for _ in range(_DRAWS):
        seeds = random.integers(0, len(runs), len(runs))
        draws.append(
            [(int(seed), np.concatenate([parts[block] for block in random.integers(0, blocks, blocks)])) for seed in seeds]
        )
    return draws


def _draw(runs: Sequence[Pace], draw: Draw) -> float:
    tokens = sum(float(runs[seed].tokens[steps].sum()) for seed, steps in draw)
    return tokens / sum(float(runs[seed].seconds[steps].sum()) for seed, steps in draw)


def _mean_rate(runs: Sequence[Pace]) -> float:
    return float(sum(run.tokens.sum() for run in runs) / sum(run.seconds.sum() for run in runs))


def _interval(values: Sequence[float], point: float) -> Interval:
    low, high = np.percentile(values, [_OUTSIDE, 100 - _OUTSIDE])
    return Interval(mean=point, low=float(low), high=float(high))
