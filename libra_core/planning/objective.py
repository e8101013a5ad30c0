"""Iteration time of a plan: the fixed point of the four terms of DESIGN section 5 (`notes/study.md` section 2).

```
A  T_train                                   B  K/E · engine seconds per trajectory + publication
C  (E[max of K] L(T) + R + publication) / (η + 1 + X)        D  (E[max of G] L(T) + R') / (η + 1)
```
R is what is left to train when the last group lands. L falls when T grows, so each candidate has exactly one fixed point.
Colocated: the engines pause while the trainer works; T = T_train + max(B, C) with C = E[max of K] L / (η + 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra_core.planning.latency import LatencyCurve
from libra_core.planning.problem import Regime
from libra_core.types.forecast import Terms

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BIAS = 1.06
"""The closed form is 6 % below the event simulation throughout (`notes/study.md` section 2)."""
ERROR = 0.10
"""Mean absolute error of the forecast against event simulations: 4-8 % in `notes/study.md`, 9-10 % in `plan_regret.py`."""
_GROUPS_LEFT = 3
"""Groups still to train when the last one of a streamed step lands."""
_BISECTIONS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Candidates as columns; all arrays `[n]`."""

    tp: NDArray[np.int64]
    """Degree of all engines of the candidate."""
    engines: Floats
    train_s: Floats
    """One whole step, not streamed."""
    train_fixed_s: Floats
    """The part of it that comes once a step, after the last micro-batch."""
    publication_s: Floats
    streamed: Bools
    colocated: Bools

    def __len__(self) -> int:
        return int(self.tp.size)

    def rows(self, chosen: NDArray[np.intp]) -> "Options":
        return Options(
            tp=self.tp[chosen],
            engines=self.engines[chosen],
            train_s=self.train_s[chosen],
            train_fixed_s=self.train_fixed_s[chosen],
            publication_s=self.publication_s[chosen],
            streamed=self.streamed[chosen],
            colocated=self.colocated[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """What the terms need of each candidate; all arrays `[n]`."""

    train_s: Floats
    """With the loss of streaming, or with the switch of a colocated run."""
    left_s: Floats
    """R."""
    half_batch_s: Floats
    """What D adds: half of the work left, and for a whole step half of the wait for the batch."""
    publication_s: Floats
    colocated: Bools
    quiet_s: Floats
    """Part of an iteration in which the engines do not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """All arrays `[n]`, seconds; without the bias."""

    t_iter_s: Floats
    trainer_s: Floats
    fleet_s: Floats
    slowest_s: Floats
    group_s: Floats
    latency_s: Floats
    """Expected latency of the slowest trajectory of a batch."""
    batch: Floats
    """Decode batch of an engine."""

    def terms(self, row: int) -> Terms:
        return Terms(
            trainer_s=float(self.trainer_s[row]),
            fleet_s=float(self.fleet_s[row]),
            slowest_s=float(self.slowest_s[row]),
            group_s=float(self.group_s[row]),
        )


def paces(options: Options, regime: Regime) -> Paces:
    """The trainer's side of the terms."""
    stretched = np.where(options.streamed, regime.streamed_loss, 1.0) * options.train_s
    train = np.where(options.colocated, options.train_s + regime.colocated_switch_s, stretched)
    fixed = np.minimum(options.train_fixed_s, train)
    share = min(_GROUPS_LEFT * regime.group_size / regime.batch, 1.0)
    left = np.where(options.streamed & ~options.colocated, fixed + (train - fixed) * share, train)
    half = left / 2 + np.where(options.streamed, 0.0, train / 2)
    waiting = left if regime.staleness == 0 else options.publication_s
    return Paces(
        train_s=train,
        left_s=left,
        half_batch_s=half,
        publication_s=np.where(options.colocated, 0.0, options.publication_s),
        colocated=options.colocated,
        quiet_s=np.where(options.colocated, train, waiting),
    )


def solve(options: Options, curves: Mapping[int, LatencyCurve], regime: Regime) -> Solution:
    """Fixed points of all candidates at once."""
    pace = paces(options, regime)
    fleet = _fleet_s(options, curves, regime) + np.where(options.colocated, pace.train_s, pace.publication_s)
    floor = np.maximum(fleet, pace.train_s)
    low, high = floor.copy(), np.maximum(floor, _latency_bound(options, curves, regime, pace, floor))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = _latency_bound(options, curves, regime, pace, middle) > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    t_iter = np.where(_latency_bound(options, curves, regime, pace, floor) <= floor, floor, high)
    slowest, group, latency = _latency_terms(options, curves, regime, pace, t_iter)
    rate = _rate(options, regime, pace, t_iter)
    batch = np.zeros(len(options))
    for tp, rows in _by_degree(options):
        batch[rows] = curves[tp].law.batch(rate[rows])
    return Solution(
        t_iter_s=t_iter,
        trainer_s=pace.train_s,
        fleet_s=fleet,
        slowest_s=slowest,
        group_s=group,
        latency_s=latency,
        batch=batch,
    )


def combine(latency_of_batch: Floats, latency_of_group: Floats, pace: Paces, regime: Regime) -> tuple[Floats, Floats]:
    """C and D from the two expected maxima."""
    publication = pace.publication_s if regime.staleness else np.zeros_like(pace.publication_s)
    slowest = (latency_of_batch + pace.left_s + publication) / (regime.staleness + 1 + regime.age_slack)
    group = (latency_of_group + pace.half_batch_s) / (regime.staleness + 1)
    alternating = latency_of_batch / (regime.staleness + 1) + pace.train_s
    return np.where(pace.colocated, alternating, slowest), np.where(pace.colocated, 0.0, group)


def _fleet_s(options: Options, curves: Mapping[int, LatencyCurve], regime: Regime) -> Floats:
    work = np.zeros(len(options))
    for tp, rows in _by_degree(options):
        work[rows] = curves[tp].law.work_s
    return regime.batch / options.engines * work


def _latency_bound(options: Options, curves: Mapping[int, LatencyCurve], regime: Regime, pace: Paces, t_iter: Floats) -> Floats:
    slowest, group, _ = _latency_terms(options, curves, regime, pace, t_iter)
    return np.maximum(slowest, group)


def _latency_terms(
    options: Options, curves: Mapping[int, LatencyCurve], regime: Regime, pace: Paces, t_iter: Floats
) -> tuple[Floats, Floats, Floats]:
    rate = _rate(options, regime, pace, t_iter)
    of_batch, of_group = np.zeros(len(options)), np.zeros(len(options))
    for tp, rows in _by_degree(options):
        of_batch[rows], of_group[rows] = curves[tp].of_batch(rate[rows]), curves[tp].of_group(rate[rows])
    slowest, group = combine(of_batch, of_group, pace, regime)
    return slowest, group, of_batch


def _rate(options: Options, regime: Regime, pace: Paces, t_iter: Floats) -> Floats:
    return regime.batch / options.engines / np.maximum(t_iter - pace.quiet_s, 1e-6)


def _by_degree(options: Options) -> list[tuple[int, NDArray[np.intp]]]:
    return [(int(tp), np.flatnonzero(options.tp == tp)) for tp in np.unique(options.tp)]
