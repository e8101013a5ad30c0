"""Mixed fleets: proposed by the exact partition, judged with the router's own errors.

The partition assumes known lengths. What a fleet is worth depends on where the router really sends each trajectory, above all
the longest ones, so the iteration time is computed on the distribution of latencies that its confusion leaves.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from libra_core.costs.api import EngineLaws, EngineLimits, RequestTable
from libra_core.planning.confusion import RouterSkill
from libra_core.planning.latency import Latencies, LoadedEngine, Slowest, backlog_s, loaded_engine
from libra_core.planning.lengths import LengthTable
from libra_core.planning.problem import Regime
from libra_core.planning.rollout_partition import IntervalCost, Partition
from libra_core.types.laws import EngineLaw

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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

    def rate(self, fleet_rate: Floats) -> Floats:
        """Of one engine of the class."""
        return fleet_rate * self.share / self.engines


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedFleet:
    """A `Fleet` of several degrees: the latencies of its classes together, computed where they are asked for."""

    classes: tuple[FleetClass, ...]
    """Shortest trajectories first."""
    batch_size: int
    group_size: int

    @property
    def work_s(self) -> float:
        return max(item.share / item.engines * item.engine.work_s for item in self.classes)

    def batch(self, rate: Floats) -> Floats:
        last = self.classes[-1]
        return last.engine.batch(last.rate(rate))

    def of_batch(self, rate: Floats) -> Floats:
        return np.array([latencies.largest(self.batch_size).mean for latencies in self._latencies(rate)])

    def slowest(self, met: Floats, mean: Floats) -> Slowest:
        groups = [latencies.largest(self.group_size) for latencies in self._latencies(mean)]
        return Slowest(
            of_batch=self.of_batch(met),
            of_group=np.array([group.mean for group in groups]),
            group_spread=np.array([group.width for group in groups]),
        )

    def backlog_s(self, rate: Floats, work_s: Floats) -> Floats:
        landed = np.stack([latencies.landed_s(self.group_size) for latencies in self._latencies(rate)])
        return backlog_s(work_s, self.of_batch(rate), landed)

    def _latencies(self, rate: Floats) -> list[Latencies]:
        weight = np.concatenate([item.lengths.weight * item.share for item in self.classes])
        by_class = [item.engine.latencies(item.rate(rate), item.lengths) for item in self.classes]
        return [Latencies.of(values, weight) for values in np.concatenate(by_class, axis=1)]


def planning_requests(lengths: LengthTable, regime: Regime) -> LengthTable:
    """The batch as at most 384 requests of equal weight, sorted by generated tokens; each stands for `K/384` of them."""
    return lengths.resampled(min(regime.batch, _MOST_REQUESTS))


def interval_cost(laws: EngineLaws, requests: LengthTable, regime: Regime) -> IntervalCost:
    """Makespans of intervals of `planning_requests`, each request counted as often as it stands for."""
    table = RequestTable(requests.prompt_tokens, requests.generated_tokens, requests.tool_tokens, requests.tool_s, requests.turns)
    times = regime.batch / len(requests)
    repeated = laws.mapped(lambda _tp, law: _repeated(law, times))

    def cost(tp: int, first: Ints, last: Ints) -> Floats:
        limits = EngineLimits(
            kv_tokens=regime.kv_fill * laws[tp].kv_tokens / times, max_num_seqs=max(1, int(regime.max_num_seqs / times))
        )
        return table.makespans_s(first, last, repeated[tp], limits)

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


def _repeated(law: EngineLaw, times: float) -> EngineLaw:
    """Each request stands for `times`: what is paid per sequence or token is paid so often, a step's own cost once."""
    return replace(law.scaled(times), a_s=law.a_s)
