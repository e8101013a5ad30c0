"""Mixed fleets: proposed by the exact partition, judged with the router's own errors.

The partition assumes known lengths. What a fleet is worth depends on where the router really sends each trajectory, above all
the longest ones, so the iteration time is computed on the distribution of latencies that its confusion leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from libra_core.costs.api import EngineLimits, RequestTable, StepCoefficients
from libra_core.planning.confusion import RouterSkill
from libra_core.planning.latency import EngineLaw, engine_law, expected_maxima
from libra_core.planning.lengths import LengthTable
from libra_core.planning.objective import Paces, combine
from libra_core.planning.problem import EngineCosts, Regime
from libra_core.planning.rollout_partition import IntervalCost, Partition
from libra_core.types.forecast import Terms

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
    law: EngineLaw


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSolution:
    """Seconds, without the bias."""

    t_iter_s: float
    terms: Terms
    latency_s: float
    batch: float
    """Decode batch on the class of the longest trajectories."""


def planning_requests(lengths: LengthTable, regime: Regime) -> LengthTable:
    """The batch as at most 384 requests of equal weight, sorted by generated tokens; each stands for `K/384` of them."""
    return lengths.resampled(min(regime.batch, _MOST_REQUESTS))


def interval_cost(costs: EngineCosts, requests: LengthTable, regime: Regime) -> IntervalCost:
    """Makespans of intervals of `planning_requests`, each request counted as often as it stands for."""
    table = RequestTable(requests.prompt_tokens, requests.generated_tokens, requests.tool_tokens, requests.tool_s, requests.turns)
    times = regime.batch / len(requests)

    def cost(tp: int, first: Ints, last: Ints) -> Floats:
        limits = EngineLimits(
            kv_tokens=regime.kv_fill * costs.kv_tokens(tp) / times, max_num_seqs=max(1, int(regime.max_num_seqs / times))
        )
        return table.makespans_s(first, last, _repeated(costs.coefficients(tp), times), limits)

    return cost


def fleet_classes(
    partition: Partition, requests: LengthTable, costs: EngineCosts, regime: Regime, router: RouterSkill
) -> tuple[FleetClass, ...]:
    """One class a degree, shortest trajectories first, each with the lengths that the router sends it."""
    right: dict[int, Floats] = {}
    for share in partition.shares:
        chosen = right.setdefault(share.tp, np.zeros(len(requests)))
        chosen[share.first : share.last + 1] = requests.weight[share.first : share.last + 1]
    degrees = sorted(right, key=lambda tp: float(right[tp] @ requests.generated_tokens / right[tp].sum()))
    served = router.confusion(len(degrees)).T @ np.stack([right[tp] for tp in degrees])
    classes: list[FleetClass] = []
    for tp, weight in zip(degrees, served, strict=True):
        total = float(weight.sum())
        if total <= 0:
            continue
        lengths = replace(requests, weight=weight / total)
        engines = sum(share.tp == tp for share in partition.shares)
        law = engine_law(costs, tp, lengths, regime)
        classes.append(FleetClass(tp=tp, engines=engines, share=total, lengths=lengths, law=law))
    return tuple(classes)


def solve_mixed(classes: Sequence[FleetClass], pace: Paces, regime: Regime) -> MixedSolution:
    """The fixed point of one mixed, asynchronous candidate; `pace` has one row."""
    publication, train = float(pace.publication_s[0]), float(pace.train_s[0])
    fleet = max(regime.batch * item.share / item.engines * item.law.work_s for item in classes) + publication
    floor = max(fleet, train)
    low, high = floor, max(floor, _bound(classes, pace, regime, floor)[0])
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _bound(classes, pace, regime, middle)[0] > middle else (low, middle)
    _, slowest, group, latency = _bound(classes, pace, regime, high)
    last = classes[-1]
    return MixedSolution(
        t_iter_s=high,
        terms=Terms(trainer_s=train, fleet_s=fleet, slowest_s=slowest, group_s=group),
        latency_s=latency,
        batch=float(last.law.batch(_rate(last, pace, regime, high))[0]),
    )


def _bound(classes: Sequence[FleetClass], pace: Paces, regime: Regime, t_iter_s: float) -> tuple[float, float, float, float]:
    values = [item.law.latencies(_rate(item, pace, regime, t_iter_s), item.lengths)[0] for item in classes]
    weights = np.concatenate([item.lengths.weight * item.share for item in classes])
    latencies = np.concatenate(values)
    of_batch, of_group = expected_maxima(latencies, weights, (regime.batch, regime.group_size))
    slowest, group = combine(np.array([of_batch]), np.array([of_group]), pace, regime)
    return float(max(slowest[0], group[0])), float(slowest[0]), float(group[0]), of_batch


def _rate(item: FleetClass, pace: Paces, regime: Regime, t_iter_s: float) -> Floats:
    active = max(t_iter_s - float(pace.quiet_s[0]), 1e-6)
    return np.array([regime.batch * item.share / item.engines / active])


def _repeated(step: StepCoefficients, times: float) -> StepCoefficients:
    """Each request stands for `times`: what is paid per sequence or token is paid so often, a step's own cost once."""
    return StepCoefficients(
        a_s=step.a_s,
        b_s=step.b_s * times,
        c_s=step.c_s * times,
        prefill_a_s=step.prefill_a_s * times,
        prefill_b_s_per_token=step.prefill_b_s_per_token * times,
        prefill_c_s_per_token2=step.prefill_c_s_per_token2 * times,
    )
