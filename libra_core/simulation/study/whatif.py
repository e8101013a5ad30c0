"""The same trajectories on other clusters: tokens per second and hours by number of GPUs, the knee, the cheapest that will do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libra_core.config import LibraConfig
from libra_core.errors import ConfigError, ResourceError
from libra_core.simulation.study.config import StudyConfig, SystemConfig
from libra_core.simulation.study.recorded import RecordedRun, plans_on, replay_on
from libra_core.simulation.study.run import layout_text, run_system
from libra_core.simulation.study.statistics import Interval, Pace, rate
from libra_core.simulation.workload.laws import WorkloadLaw
from libra_core.types.plan import Plan

_SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_KNEE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One cluster size."""

    gpus: int
    tokens_per_s: Interval
    t_iter_s: float
    hours: float
    """For the steps that were asked about."""
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputCurve:
    """All sizes, ascending; a size on which nothing fits is left out."""

    points: tuple[Point, ...]
    too_small: tuple[int, ...]
    """Sizes without a feasible plan."""
    knee_gpus: int
    """The largest size whose GPUs each still bring at least half of what the most productive size's bring."""
    cheapest_gpus: int | None
    """The smallest size that meets the goal with the lower end of its interval; None when no size does, or no goal was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """At least one of the two, or none."""

    tokens_per_s: float | None = None
    hours: float | None = None
    steps: int = 1000
    """That the hours are for."""

    def met(self, point: Point) -> bool:
        """By the pessimistic end of the interval."""
        pessimism = point.tokens_per_s.mean / point.tokens_per_s.low
        fast = self.tokens_per_s is None or point.tokens_per_s.low >= self.tokens_per_s
        return fast and (self.hours is None or point.hours * pessimism <= self.hours)


def sizes_of(text: str) -> list[int]:
    """`48`, `8,16,24` or `8..256`, which names the usual sizes between. Raises `ConfigError`."""
    try:
        if ".." in text:
            low, high = (int(part) for part in text.split(".."))
            sizes = sorted({low, high, *(size for size in _SIZES if low <= size <= high)}) if low <= high else []
        else:
            sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--gpus {text!r} is no number, list or range; for example 48, 16,32,64 or 8..256") from None
    if not sizes or sizes[0] < 2 or sizes[-1] > _SIZES[-1]:
        raise ConfigError(f"--gpus {text!r} must ascend and stay between 2 and {_SIZES[-1]}")
    return sizes


def replay(
    study: StudyConfig,
    system: tuple[str, SystemConfig],
    law: WorkloadLaw,
    sizes: Sequence[int],
    goal: Goal,
    report: Callable[[str, float], None],
) -> ThroughputCurve:
    """Run the system on every size; raises `ResourceError` when it fits on none."""
    points: list[Point] = []
    too_small: list[int] = []
    for place, gpus in enumerate(sizes):
        report(f"{system[0]} on {gpus} GPUs", place / len(sizes))
        try:
            points.append(_point(study.model_copy(update={"gpus": gpus}), system, law, goal.steps))
        except ResourceError:
            too_small.append(gpus)
    return curve_of(points, too_small, goal, system[0])


def replay_run(
    run: RecordedRun, config: LibraConfig, sizes: Sequence[int], goal: Goal, report: Callable[[str, float], None]
) -> ThroughputCurve:
    """A recorded run as `config` changes it, on every size: the best split of those with its own degrees, found by simulation.
    Raises `ResourceError` when it fits on none."""
    points: list[Point] = []
    too_small: list[int] = []
    for place, gpus in enumerate(sizes):
        report(f"the run on {gpus} GPUs", place / len(sizes))
        replayed = [_recorded_point(run, config, plan, gpus, goal.steps) for plan in plans_on(run, gpus, config)]
        if replayed:
            points.append(min(replayed, key=lambda point: point.t_iter_s))
        else:
            too_small.append(gpus)
    return curve_of(points, too_small, goal, "the run")


def _recorded_point(run: RecordedRun, config: LibraConfig, plan: Plan, gpus: int, steps: int) -> Point:
    meter = replay_on(run, plan, config)
    t_iter = meter.summary(gpus).t_iter_s
    return Point(
        gpus=gpus,
        tokens_per_s=rate([Pace.of(meter.views(), config.rollout.groups_per_step * config.rollout.group_size)]),
        t_iter_s=t_iter,
        hours=t_iter * steps / 3600,
        plan=layout_text(plan),
    )


def curve_of(points: Sequence[Point], too_small: Sequence[int], goal: Goal, name: str) -> ThroughputCurve:
    """Raises `ResourceError` without any point."""
    if not points:
        raise ResourceError(f"{name} fits on none of {list(too_small)} GPUs; ask for more with --gpus")
    asked = goal.tokens_per_s is not None or goal.hours is not None
    cheapest = next((point.gpus for point in points if goal.met(point)), None) if asked else None
    return ThroughputCurve(points=tuple(points), too_small=tuple(too_small), knee_gpus=_knee(points), cheapest_gpus=cheapest)


def _point(study: StudyConfig, system: tuple[str, SystemConfig], law: WorkloadLaw, steps: int) -> Point:
    outcomes = [run_system(study, *system, law, seed) for seed in range(1, study.seeds + 1)]
    paces = [Pace.of(outcome.steps, study.batch) for outcome in outcomes]
    t_iter = sum(outcome.summary.t_iter_s for outcome in outcomes) / len(outcomes)
    return Point(
        gpus=study.gpus,
        tokens_per_s=rate(paces),
        t_iter_s=t_iter,
        hours=t_iter * steps / 3600,
        plan=outcomes[0].first_plan,
    )


def _knee(points: Sequence[Point]) -> int:
    each = [point.tokens_per_s.mean / point.gpus for point in points]
    return max(point.gpus for point, value in zip(points, each, strict=True) if value >= _KNEE * max(each))
