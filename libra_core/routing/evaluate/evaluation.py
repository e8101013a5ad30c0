"""Prequential evaluation: every trajectory is routed before it is learnt from."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from libra_core.errors import ConfigError
from libra_core.ports.routing import RoutingPolicy
from libra_core.routing.buckets import QUANTILES, Buckets, buckets_from_lengths
from libra_core.routing.build import POLICIES, RouterSetup, build_policy
from libra_core.routing.costs import table_for
from libra_core.routing.embedding import Embed
from libra_core.routing.evaluate.figures import Figures, figures_of
from libra_core.routing.evaluate.orders import Order, Visit, grpo_order, recorded_order
from libra_core.routing.evaluate.recorded import RecordedTrajectory
from libra_core.routing.evaluate.reference import PROMPT_MEAN, PromptMean
from libra_core.routing.evaluate.replay import ReplayWorld, Routed, as_finished, replay, trajectory_id
from libra_core.routing.expected_cost import Start
from libra_core.types.ids import TrajectoryId

DEGREES = (1, 2, 4, 8)
COMPARED = (*POLICIES, PROMPT_MEAN)
"""Every policy, and the reference."""
ENGINES = {1: 8, 2: 4, 4: 2, 8: 1}
"""Engines per bucket: as many GPUs each."""
_T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """What is replayed and how."""

    policies: tuple[str, ...] = COMPARED
    orders: tuple[Order, ...] = ("recorded", "grpo")
    degrees: tuple[int, ...] = DEGREES
    limits: tuple[float, ...] | None = None
    """Token limits between buckets; unset: the quantiles below of the warm-up part."""
    quantiles: tuple[float, ...] = QUANTILES
    warm_up: float = 0.2
    """First share of an order that is learnt from unrouted; it sets limits and urgencies."""
    epochs: int = 2
    """Visits of each prompt in GRPO-like order."""
    shuffles: int = 5
    """GRPO-like orders that figures are averaged over."""
    in_flight: int = 16
    start: Start = "predicted"
    seed: int = 0
    embed: Embed | None = None
    """Sentence model of the `embedding` policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One policy on one data set in one order, averaged over shuffles."""

    data_set: str
    order: Order
    policy: str
    figures: Figures
    """After the warm-up part."""
    later: Figures | None
    """The same from the second visit of a prompt on; None when no prompt is visited twice."""
    regret_interval_s: float
    """Half-width of the 95 % interval over shuffles; 0 for a single order."""


def evaluate(
    data_set: str,
    trajectories: Sequence[RecordedTrajectory],
    settings: EvaluationSettings,
    progress: Callable[[str], None] = lambda line: None,
) -> list[PolicyRow]:
    """Every policy in both orders; raises `ConfigError` when the set is too small to have a warm-up part."""
    rows: list[PolicyRow] = []
    settings = replace(settings, embed=settings.embed and _embedded(trajectories, settings.embed))
    for order, sequences in _sequences(trajectories, settings):
        for policy in settings.policies:
            progress(f"{data_set}: {policy}, {order} order")
            runs = [_run(visits, policy, replace(settings, seed=seed)) for seed, visits in sequences]
            rows.append(_row(data_set, order, policy, runs))
    return rows


def _embedded(trajectories: Sequence[RecordedTrajectory], embed: Embed) -> Embed:
    """The same, looked up: every prompt is embedded once for all orders, outside of what decisions are timed for."""
    texts = sorted({trajectory.prompt_text for trajectory in trajectories})
    vectors = dict(zip(texts, embed(texts), strict=True))
    return lambda some: np.stack([vectors[text] for text in some])


def _sequences(
    trajectories: Sequence[RecordedTrajectory], settings: EvaluationSettings
) -> Iterator[tuple[Order, list[tuple[int, list[Visit]]]]]:
    if "recorded" in settings.orders:
        yield "recorded", [(settings.seed, recorded_order(trajectories))]
    seeds = range(settings.seed, settings.seed + settings.shuffles)
    if "grpo" in settings.orders:
        yield "grpo", [(seed, grpo_order(trajectories, settings.epochs, seed)) for seed in seeds]


def _run(visits: Sequence[Visit], policy_name: str, settings: EvaluationSettings) -> list[Routed]:
    warm, scored = split_warm_up(visits, settings.warm_up)
    world = make_world([visit.trajectory.generated_tokens for visit in warm], settings)
    totals = {trajectory_id(visit, order): visit.trajectory.generated_tokens for order, visit in enumerate(scored)}
    policy = make_policy(policy_name, world, settings, totals.__getitem__)
    for order, visit in enumerate(warm):
        policy.learn(as_finished(visit, TrajectoryId(f"warm-up/{trajectory_id(visit, order)}")))
    return replay(scored, policy, world)


def split_warm_up(visits: Sequence[Visit], share: float) -> tuple[Sequence[Visit], Sequence[Visit]]:
    """Raises `ConfigError` when one part would be empty."""
    cut = round(share * len(visits))
    if not 0 < cut < len(visits):
        raise ConfigError(
            f"{len(visits)} trajectories leave no part to warm up on or no part to score at a warm-up share of {share:g}; "
            "give more trajectories or another share"
        )
    return visits[:cut], visits[cut:]


def make_world(lengths: Sequence[int], settings: EvaluationSettings) -> ReplayWorld:
    """Buckets and charges from the lengths of the warm-up part."""
    if unknown := [degree for degree in settings.degrees if degree not in ENGINES]:
        raise ConfigError(f"buckets may have the degrees {', '.join(map(str, ENGINES))}; TP {unknown[0]} has no known engines")
    if settings.limits is None:
        buckets = buckets_from_lengths([float(length) for length in lengths], settings.degrees, settings.quantiles)
    else:
        buckets = Buckets(degrees=settings.degrees, limits=(*settings.limits, float("inf")))
    costs = table_for(buckets, [float(length) for length in lengths])
    engines = tuple(ENGINES[degree] for degree in settings.degrees)
    return ReplayWorld(costs=costs, engines_per_bucket=engines, in_flight=settings.in_flight)


def make_policy(
    name: str, world: ReplayWorld, settings: EvaluationSettings, total_tokens: Callable[[TrajectoryId], int]
) -> RoutingPolicy:
    """A policy that knows nothing yet."""
    if name == PROMPT_MEAN:
        return PromptMean(world.buckets, seed=settings.seed)
    setup = RouterSetup(
        buckets=world.buckets,
        costs=world.costs,
        seed=settings.seed,
        start=settings.start,
        total_tokens=total_tokens,
        embed=settings.embed,
    )
    return build_policy(name, setup)


def _row(data_set: str, order: Order, policy: str, runs: Sequence[Sequence[Routed]]) -> PolicyRow:
    every = [figures_of(run) for run in runs]
    later = [figures_of(again) for run in runs if (again := [item for item in run if item.epoch > 1])]
    return PolicyRow(
        data_set=data_set,
        order=order,
        policy=policy,
        figures=mean_figures(every),
        later=mean_figures(later) if later else None,
        regret_interval_s=half_width([item.regret_s for item in every]),
    )


def mean_figures(several: Sequence[Figures]) -> Figures:
    """Field by field; counts are rounded."""
    names = [item.name for item in dataclasses.fields(Figures) if item.name != "trajectories"]
    means = {name: float(np.mean([getattr(item, name) for item in several])) for name in names}
    return Figures(trajectories=round(np.mean([item.trajectories for item in several])), **means)


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % t-interval of the mean; 0 for one value."""
    if len(values) < 2:
        return 0.0
    quantile = _T_975[len(values) - 2] if len(values) - 2 < len(_T_975) else 1.96
    return quantile * float(np.std(values, ddof=1)) / len(values) ** 0.5
