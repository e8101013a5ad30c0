"""Mixed fleets: proposed by the exact partition, judged with the router's own errors.

The partition assumes known lengths. What a fleet is worth depends on where the router really sends each trajectory, above all
the longest ones, so the iteration time is computed on the distribution of latencies that its confusion leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from libra_core.costs.api import EngineLaws, EngineLimits, RequestTable
from libra_core.planning.confusion import RouterSkill
from libra_core.planning.latency import Latencies, LoadedEngine, backlog_s, loaded_engine
from libra_core.planning.lengths import LengthTable
from libra_core.planning.objective import BIAS, Paces, Slowest, combine
from libra_core.planning.problem import Regime
from libra_core.planning.rollout_partition import IntervalCost, Partition
from libra_core.types.forecast import Terms
from libra_core.types.laws import EngineLaw

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BISECTIONS = 24
_MOST_REQUESTS = 384


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetClass:
    """All engines of one degree and what is routed to them."""

    tp: int
    engines: int
    share: float
    """Of all trajectories."""
    lengths: LengthTable
    engine: LoadedEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSolution:
    """Seconds, without the bias but in the forecast and its terms."""

    t_iter_s: float
    forecast_s: float
    train_s: float
    terms: Terms
    latency_s: float
    batch: float
    """Decode batch on the class of the longest trajectories."""


def planning_requests(lengths: LengthTable, regime: Regime) -> LengthTable:
    """The batch as at most 384 requests of equal weight, sorted by generated tokens; each stands for `K/384` of them."""
    return lengths.resampled(min(regime.batch, _MOST_REQUESTS))


def interval_cost(laws: EngineLaws, requests: LengthTable, regime: Regime) -> IntervalCost:
    """Makespans of intervals of `planning_requests`, each request counted as often as it stands for."""
    table = RequestTable(requests.prompt_tokens, requests.generated_tokens, requests.tool_tokens, requests.tool_s, requests.turns)
    times = regime.batch / len(requests)

    def cost(tp: int, first: Ints, last: Ints) -> Floats:
        limits = EngineLimits(
            kv_tokens=regime.kv_fill * laws[tp].kv_tokens / times, max_num_seqs=max(1, int(regime.max_num_seqs / times))
        )
        return table.makespans_s(first, last, _repeated(laws[tp], times), limits)

    return cost


def fleet_classes(
    partition: Partition, lengths: LengthTable, laws: EngineLaws, regime: Regime, router: RouterSkill
) -> tuple[FleetClass, ...]:
    """One class a degree, shortest trajectories first, each with what the router sends it of the whole history `lengths`."""
    right: dict[int, Floats] = {}
    requests = partition.shares[-1].last + 1
    for share in partition.shares:
        chosen = right.setdefault(share.tp, np.zeros(len(lengths)))
        chosen += lengths.within(share.first / requests, (share.last + 1) / requests)
    degrees = sorted(right, key=lambda tp: float(right[tp] @ lengths.generated_tokens / right[tp].sum()))
    served = router.confusion(len(degrees)).T @ np.stack([right[tp] for tp in degrees])
    classes: list[FleetClass] = []
    for tp, weight in zip(degrees, served, strict=True):
        total = float(weight.sum())
        if total <= 0:
            continue
        sent = lengths.weighted(weight / total)
        engines = sum(share.tp == tp for share in partition.shares)
        engine = loaded_engine(laws, tp, sent, regime)
        classes.append(FleetClass(tp=tp, engines=engines, share=total, lengths=sent, engine=engine))
    return tuple(classes)


def solve_mixed(classes: Sequence[FleetClass], pace: Paces, regime: Regime) -> MixedSolution:
    """The fixed point of one mixed, asynchronous candidate; `pace` has one row."""
    publication, train = float(pace.publication_s[0]), float(pace.train_s[0])
    fleet = max(regime.batch * item.share / item.engines * item.engine.work_s for item in classes) + publication
    trainer = train + float(pace.waits_s[0])
    floor = max(fleet, trainer / BIAS)
    if regime.staleness == 0:
        window = _burst_window_s(classes, regime)
        found = _judged(classes, pace, regime, (window, window))
        t_iter = max(floor, found.bound_s)
    else:
        t_iter = _fixed_point_s(classes, pace, regime, floor)
        window = _active_s(t_iter, pace.paused_s)
        found = _judged(classes, pace, regime, (_active_s(t_iter, pace.quiet_s), window))
    last = classes[-1]
    return MixedSolution(
        t_iter_s=t_iter,
        forecast_s=BIAS * t_iter,
        train_s=train,
        terms=Terms(trainer_s=trainer, fleet_s=BIAS * fleet, slowest_s=BIAS * found.slowest_s, group_s=BIAS * found.group_s),
        latency_s=found.latency_s,
        batch=float(last.engine.batch(_rate(last, regime, window))[0]),
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """The latency terms when a batch arrives within some window."""

    slowest_s: float
    group_s: float
    latency_s: float

    @property
    def bound_s(self) -> float:
        return max(self.slowest_s, self.group_s)


def _judged(classes: Sequence[FleetClass], pace: Paces, regime: Regime, windows: tuple[float, float]) -> _Judged:
    """`windows`: seconds within which the arrivals of an iteration meet the slowest trajectory, and an average group."""
    met, usual = (_latencies(classes, regime, window) for window in windows)
    group = usual.largest(regime.group_size)
    latency = Slowest(
        of_batch=np.array([met.largest(regime.batch).mean]),
        of_group=np.array([group.mean]),
        group_spread=np.array([group.width]),
    )
    if regime.staleness == 0:
        landed = met.landed_s(regime.group_size)
        pace = pace.with_backlog(backlog_s(pace.streamed_s, latency.of_batch, landed[None, :]))
    slowest, slowest_group = combine(latency, pace, regime)
    return _Judged(float(slowest[0]), float(slowest_group[0]), float(latency.of_batch[0]))


def _latencies(classes: Sequence[FleetClass], regime: Regime, window_s: float) -> Latencies:
    values = [item.engine.latencies(_rate(item, regime, window_s), item.lengths)[0] for item in classes]
    return Latencies.of(np.concatenate(values), np.concatenate([item.lengths.weight * item.share for item in classes]))


def _fixed_point_s(classes: Sequence[FleetClass], pace: Paces, regime: Regime, floor: float) -> float:
    def bound(t_iter_s: float) -> float:
        windows = _active_s(t_iter_s, pace.quiet_s), _active_s(t_iter_s, pace.paused_s)
        return _judged(classes, pace, regime, windows).bound_s

    low, high = floor, max(floor, bound(floor))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if bound(middle) > middle else (low, middle)
    return high


def _burst_window_s(classes: Sequence[FleetClass], regime: Regime) -> float:
    """Latency of the slowest trajectory of a batch that arrives within this very time."""

    def slowest(window_s: float) -> float:
        return _latencies(classes, regime, window_s).largest(regime.batch).mean

    low, high = 1e-3, slowest(1e-3)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if slowest(middle) > middle else (low, middle)
    return high


def _active_s(t_iter_s: float, without: Floats) -> float:
    return max(t_iter_s - float(without[0]), 1e-6)


def _rate(item: FleetClass, regime: Regime, window_s: float) -> Floats:
    return np.array([regime.batch * item.share / item.engines / window_s])


def _repeated(law: EngineLaw, times: float) -> EngineLaw:
    """Each request stands for `times`: what is paid per sequence or token is paid so often, a step's own cost once."""
    return replace(law.scaled(times), a_s=law.a_s)
