"""Iteration time of a plan: the fixed point of four terms (docs/planner.md#what-is-minimised).

```
A  T_train + what it waits for publications  B  K/E · engine seconds per trajectory + publication
C  (E[max of K] L(T) + R + publication) / (η + 1 + X)
D  (E[Y] + R + publication + T·w) / (η + 1),  Y = max of G of L(T),  w = min(1, √12·sd(Y)/T) / 2
```
R is what is left to train when the last group lands. L falls when T grows, so each candidate has exactly one fixed point.
Colocated: the engines pause while the trainer works; T = T_train + max(B, C) with C = E[max of K] L / (η + 1).

D counts groups: of the η + 1 batches in flight one is complete when a step starts, so with the groups' latency Y and
`t = T - R - publication`, `Σ over k ≥ 0 of P(Y > t + k·T) ≤ η`. The sum is the mean of (Y - t)/T rounded up. For Y uniform over a
width W it is `(E[Y] - t)/T + w` with `w = min(1, W/T)/2`: a wide group waits half a step for the others, equal ones do not wait
(`tests/unit/planning/test_objective.py` compares with the sum). W of other laws is that of their variance. With η = 0 the sum is
C, and D only L of a group, R and publication.

The load that L is computed at: groups are admitted with a new version, so the η + 1 batches that the oldest trajectory meets all
arrive before the last R of its time, `lam = K/(E·(T - publication - R/(η + 1 + X)))`. With η = 0 all K start together and X
changes nothing, since a step then needs every group that was admitted: `lam = K/(E·L)`. The groups of such a burst land late, so
R of a streamed step is at least the trainer's backlog (`latency.backlog_s`). All of it is checked in
`tests/benchmarks/plan_regret.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from libra_core.planning.latency import FleetModel, Slowest
from libra_core.planning.problem import Regime
from libra_core.types.forecast import Terms

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BIAS = 1.06
"""The closed form of B, C and D is 6 % below the event simulation
(docs/measurements.md#the-closed-form-against-480-runs). A is the trainer's own time, and simulated steps take 0-2 % longer where
it binds. So it enters the fixed point divided by the bias."""
ERROR = 0.08
"""Mean absolute error of the forecast against event simulations: 4-8 % in docs/measurements.md#the-closed-form-against-480-runs,
alike in `tests/benchmarks/plan_regret.py`."""
_GROUPS_LEFT = 3
"""Groups still to train when the last one of a streamed step lands."""
_HALF = 0.5
"""Of a step, that a group waits for the others when groups spread over more than a step."""
_BISECTIONS = 48
_CLOSE = 1e-8
"""Relative width at which a bisection ends: below what counts as a tie between plans, 1e-6."""
_SHORTEST_S = 1e-3
"""Within which no batch arrives."""
MIXED = 0
"""Key of the one mixed fleet that is solved for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Candidates as columns; all arrays `[n]`."""

    fleet: NDArray[np.int64]
    """Key among the fleets: the degree of equal engines, or `MIXED`."""
    engines: Floats
    """1 where the fleet is mixed: its rates are those of the whole."""
    train_s: Floats
    """One whole step, not streamed."""
    train_fixed_s: Floats
    """The part of it that comes once a step, after the last micro-batch."""
    publication_s: Floats
    streamed: Bools
    colocated: Bools

    def __len__(self) -> int:
        return int(self.fleet.size)

    def mixed(self) -> "Options":
        """The same trainers beside a mixed fleet."""
        return replace(self, fleet=np.full(len(self), MIXED), engines=np.ones(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """What the terms need of each candidate; all arrays `[n]`."""

    train_s: Floats
    """With the loss of streaming, or with the switch of a colocated run."""
    waits_s: Floats
    """What the trainer stands still for during a publication."""
    left_s: Floats
    """R."""
    fixed_s: Floats
    """Part of the training that comes once a step."""
    streamed_s: Floats
    """Rest of the training when groups are trained as they land, else 0."""
    publication_s: Floats
    colocated: Bools
    quiet_s: Floats
    """Part of an iteration in which nothing arrives that the slowest trajectory meets."""
    paused_s: Floats
    """Part of an iteration in which the engines do not run."""

    def with_backlog(self, backlog_s: Floats) -> "Paces":
        """Where the trainer is behind when the last group lands."""
        return replace(self, left_s=np.maximum(self.left_s, np.where(self.streamed_s > 0, self.fixed_s + backlog_s, 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """All arrays `[n]`, seconds; without the bias."""

    t_iter_s: Floats
    """The fixed point, of which `BIAS` times is the forecast."""
    train_s: Floats
    """Training alone."""
    trainer_s: Floats
    fleet_s: Floats
    slowest_s: Floats
    group_s: Floats
    latency_s: Floats
    """Expected latency of the slowest trajectory of a batch."""
    batch: Floats
    """Decode batch of an engine."""

    @property
    def forecast_s(self) -> Floats:
        return BIAS * self.t_iter_s

    def terms(self, row: int) -> Terms:
        """With their bias: the largest is the forecast."""
        return Terms(
            trainer_s=float(self.trainer_s[row]),
            fleet_s=BIAS * float(self.fleet_s[row]),
            slowest_s=BIAS * float(self.slowest_s[row]),
            group_s=BIAS * float(self.group_s[row]),
        )


def paces(options: Options, regime: Regime) -> Paces:
    """The trainer's side of the terms."""
    stretched = np.where(options.streamed, regime.streamed_loss, 1.0) * options.train_s
    train = np.where(options.colocated, options.train_s + regime.colocated_switch_s, stretched)
    fixed = np.minimum(options.train_fixed_s, train)
    share = min(_GROUPS_LEFT * regime.group_size / regime.batch, 1.0)
    left = np.where(options.streamed & ~options.colocated, fixed + (train - fixed) * share, train)
    waiting = options.publication_s + left / _window_steps(regime)
    return Paces(
        train_s=train,
        waits_s=np.where(options.colocated, 0.0, regime.trainer_waits * options.publication_s),
        left_s=left,
        fixed_s=fixed,
        streamed_s=np.where(options.streamed & ~options.colocated, train - fixed, 0.0),
        publication_s=np.where(options.colocated, 0.0, options.publication_s),
        colocated=options.colocated,
        quiet_s=np.where(options.colocated, train, waiting),
        paused_s=np.where(options.colocated, train, options.publication_s),
    )


def solve(options: Options, fleets: Mapping[int, FleetModel], regime: Regime) -> Solution:
    """Fixed points of all candidates at once."""
    pace = paces(options, regime)
    fleet = _fleet_s(options, fleets, regime) + np.where(options.colocated, pace.train_s, pace.publication_s)
    trainer = pace.train_s + pace.waits_s
    floor = np.maximum(fleet, trainer / BIAS)
    if regime.staleness == 0:
        rate = _burst_rate(options, fleets, regime)
        slowest, group, latency = _latency_terms(options, fleets, regime, pace, (rate, rate))
        t_iter = np.maximum(floor, np.maximum(slowest, group))
    else:
        t_iter = _fixed_point(options, fleets, regime, pace, floor)
        rate = _rate(options, regime, t_iter - pace.paused_s)
        slowest, group, latency = _latency_terms(options, fleets, regime, pace, _rates(options, regime, pace, t_iter))
    batch = np.zeros(len(options))
    for key, rows in _by_fleet(options):
        batch[rows] = fleets[key].batch(rate[rows])
    return Solution(
        t_iter_s=t_iter,
        train_s=pace.train_s,
        trainer_s=trainer,
        fleet_s=fleet,
        slowest_s=slowest,
        group_s=group,
        latency_s=latency,
        batch=batch,
    )


def _fixed_point(options: Options, fleets: Mapping[int, FleetModel], regime: Regime, pace: Paces, floor: Floats) -> Floats:
    """Least T at or above the floor that the latency terms do not exceed."""

    def bound(t_iter: Floats) -> Floats:
        slowest, group, _ = _latency_terms(options, fleets, regime, pace, _rates(options, regime, pace, t_iter))
        return np.maximum(slowest, group)

    at_floor = bound(floor)
    return np.where(at_floor <= floor, floor, _least(bound, floor, np.maximum(floor, at_floor)))


def _burst_rate(options: Options, fleets: Mapping[int, FleetModel], regime: Regime) -> Floats:
    """Rate at which a batch arrives within the latency of its own slowest trajectory."""
    each = regime.batch / options.engines

    def slowest(window_s: Floats) -> Floats:
        latencies = np.zeros(len(options))
        for key, rows in _by_fleet(options):
            latencies[rows] = fleets[key].of_batch(each[rows] / window_s[rows])
        return latencies

    return each / _least(slowest, np.zeros(len(options)), slowest(np.full(len(options), _SHORTEST_S)))


def _least(bound: Callable[[Floats], Floats], low: Floats, high: Floats) -> Floats:
    """Least x `[n]` that `bound`, which falls as x grows, does not exceed; from above, to `_CLOSE`."""
    for _ in range(_BISECTIONS):
        if not np.any(high - low > _CLOSE * high):
            break
        middle = (low + high) / 2
        above = bound(middle) > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return high


def _window_steps(regime: Regime) -> int:
    """Steps from a group's admission to the one that must train it; slack needs other groups that can be trained instead."""
    return regime.staleness + 1 + (regime.age_slack if regime.staleness else 0)


def combine(latency: Slowest, pace: Paces, regime: Regime) -> tuple[Floats, Floats]:
    """C and D."""
    after = pace.left_s + pace.publication_s
    slowest = (latency.of_batch + after) / _window_steps(regime)
    group = group_term(latency.of_group + after, latency.group_spread, regime.staleness)
    alternating = latency.of_batch / (regime.staleness + 1) + pace.train_s
    return np.where(pace.colocated, alternating, slowest), np.where(pace.colocated, 0.0, group)


def group_term(mean_s: Floats, spread_s: Floats, staleness: int) -> Floats:
    """D: the least T at which groups that take `mean_s` from admission to the next step, uniform over `spread_s`, keep up; `[n]`.

    Whether W is below T or above, D is the lesser of its two forms.
    """
    if staleness == 0:
        return mean_s
    narrow = (mean_s + _HALF * spread_s) / (staleness + 1)
    return np.minimum(narrow, mean_s / (staleness + _HALF))


def _fleet_s(options: Options, fleets: Mapping[int, FleetModel], regime: Regime) -> Floats:
    work = np.zeros(len(options))
    for key, rows in _by_fleet(options):
        work[rows] = fleets[key].work_s
    return regime.batch / options.engines * work


def _latency_terms(
    options: Options, fleets: Mapping[int, FleetModel], regime: Regime, pace: Paces, rates: tuple[Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """C, D and E[max of K] L at the arrival rates that the slowest trajectory and an average group meet."""
    met, mean = rates
    of_batch, of_group, spread, backlog = (np.zeros(len(options)) for _ in range(4))
    for key, rows in _by_fleet(options):
        latencies = fleets[key].slowest(met[rows], mean[rows])
        of_batch[rows], of_group[rows], spread[rows] = latencies.of_batch, latencies.of_group, latencies.group_spread
        if regime.staleness == 0:
            backlog[rows] = fleets[key].backlog_s(met[rows], pace.streamed_s[rows])
    latency = Slowest(of_batch=of_batch, of_group=of_group, group_spread=spread)
    slowest, group = combine(latency, pace.with_backlog(backlog), regime)
    return slowest, group, of_batch


def _rates(options: Options, regime: Regime, pace: Paces, t_iter: Floats) -> tuple[Floats, Floats]:
    return _rate(options, regime, t_iter - pace.quiet_s), _rate(options, regime, t_iter - pace.paused_s)


def _rate(options: Options, regime: Regime, active_s: Floats) -> Floats:
    return regime.batch / options.engines / np.maximum(active_s, 1e-6)


def _by_fleet(options: Options) -> list[tuple[int, NDArray[np.intp]]]:
    return [(int(key), np.flatnonzero(options.fleet == key)) for key in np.unique(options.fleet)]
