"""A whole study: every system on every workload with every seed, and the table that comes of it."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from libra_core.errors import ConfigError
from libra_core.simulation.study.bounds import fluid_tokens_per_s
from libra_core.simulation.study.config import StudyConfig, SystemConfig, load_laws, load_systems, varied
from libra_core.simulation.study.run import SystemRun, run_system, workload
from libra_core.simulation.study.statistics import Interval, Pace, mean_ratio, rate, ratio
from libra_core.simulation.truth import load_truth
from libra_core.simulation.workload.laws import WorkloadLaw
from libra_core.types.decision import Decision

ORACLE = "oracle"
Report = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRow:
    """One system on one workload."""

    workload: str
    system: str
    tokens_per_s: Interval
    over_baseline: Interval
    of_oracle: float
    """Share of the oracle's tokens per second; nan without that run."""
    of_bound: float
    """Share of the bound without latency."""
    means: dict[str, float]
    """Of the fields of `RunSummary`, over seeds, and of the CPU time that planning and routing took."""
    first_plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One setting of a sweep."""

    label: str
    baseline: str
    rows: tuple[SystemRow, ...]
    over_baseline: dict[str, Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """Everything that a report or a figure needs."""

    study: StudyConfig
    systems: dict[str, SystemConfig]
    outcomes: tuple[SystemRun, ...]
    rows: tuple[SystemRow, ...]
    over_baseline: dict[str, Interval]
    """Mean over the workloads, by system."""
    bounds: dict[str, float]
    """Tokens per second without latency, by workload."""
    sweeps: dict[str, tuple[SweepPoint, ...]]
    wall_s: float
    cpu_s: float

    @property
    def tokens_per_cpu_s(self) -> float:
        return sum(outcome.summary.simulated_tokens for outcome in self.outcomes) / self.cpu_s

    @property
    def events_per_cpu_s(self) -> float:
        return sum(outcome.summary.events for outcome in self.outcomes) / self.cpu_s

    def as_json(self) -> dict[str, Any]:
        return {
            "study": self.study.model_dump(mode="json"),
            "rows": [_flat(row) for row in self.rows],
            "over_baseline": {name: asdict(value) for name, value in self.over_baseline.items()},
            "bounds_tokens_per_s": self.bounds,
            "sweeps": {name: [_point_json(point) for point in points] for name, points in self.sweeps.items()},
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "simulated_tokens_per_cpu_s": self.tokens_per_cpu_s,
            "events_per_cpu_s": self.events_per_cpu_s,
        }

    def runs_json(self) -> list[dict[str, Any]]:
        """Every run with its steps, for trackers and figures."""
        return [
            {
                "system": outcome.system,
                "workload": outcome.workload,
                "seed": outcome.seed,
                "first_plan": outcome.first_plan,
                "summary": _finite(asdict(outcome.summary)),
                "steps": [asdict(step) for step in outcome.steps],
                "picture": asdict(outcome.picture) if outcome.seed == 1 else None,
                "decisions": [_decision(decision) for decision in outcome.decisions],
            }
            for outcome in self.outcomes
        ]


def compare(study: StudyConfig, report: Report, *, processes: int = 2) -> StudyResult:
    """Run it all. Raises `ConfigError` before the first run when the study is wrong."""
    began = time.monotonic()
    variants = [("", "", study), *_variants(study)]
    each = [_jobs(variant) for _, _, variant in variants]
    runs = iter(_run_all([job for jobs in each for job in jobs], report, processes))
    outcomes = [tuple(next(runs) for _ in jobs) for jobs in each]
    points = [(sweep, _summary(variant, label, done)) for (sweep, label, variant), done in zip(variants, outcomes, strict=True)]
    base = points[0][1]
    return StudyResult(
        study=study,
        systems=load_systems(study),
        outcomes=outcomes[0],
        rows=base.rows,
        over_baseline=base.over_baseline,
        bounds={row.workload: row.tokens_per_s.mean / row.of_bound for row in base.rows},
        sweeps={name: tuple(point for sweep, point in points if sweep == name) for name in study.sweeps},
        wall_s=time.monotonic() - began,
        cpu_s=sum(outcome.cpu_s for done in outcomes for outcome in done),
    )


def _variants(study: StudyConfig) -> list[tuple[str, str, StudyConfig]]:
    return [
        (name, label, varied(study, (*sweep.common, *point)))
        for name, sweep in study.sweeps.items()
        for label, point in sweep.points.items()
    ]


def _jobs(study: StudyConfig) -> "list[Job]":
    systems = load_systems(study)
    if study.baseline not in systems:
        raise ConfigError(f"the baseline {study.baseline!r} is not among the chosen systems {', '.join(systems)}; choose it too")
    return [
        (study, name, system, law, seed)
        for law in load_laws(study).values()
        for name, system in systems.items()
        for seed in _seeds(study)
    ]


def _summary(study: StudyConfig, label: str, outcomes: Sequence[SystemRun]) -> SweepPoint:
    laws, systems = load_laws(study), list(load_systems(study))
    bounds = {law.name: _bound(study, law) for law in laws.values()}
    return SweepPoint(
        label=label,
        baseline=study.baseline,
        rows=tuple(_rows(study, list(laws), systems, outcomes, bounds)),
        over_baseline=_over_baseline(study, list(laws), systems, outcomes),
    )


def _seeds(study: StudyConfig) -> range:
    return range(1, study.seeds + 1)


Job = tuple[StudyConfig, str, SystemConfig, WorkloadLaw, int]


def _run_all(jobs: Sequence[Job], report: Report, processes: int) -> tuple[SystemRun, ...]:
    """In the order of the jobs, whatever the order in which they end."""
    done: dict[int, SystemRun] = {}
    if processes <= 1:
        for place, job in enumerate(jobs):
            done[place] = run_system(*job)
            report(_label(job), (place + 1) / len(jobs))
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            running = {pool.submit(run_system, *job): place for place, job in enumerate(jobs)}
            for future in as_completed(running):
                done[running[future]] = future.result()
                report(_label(jobs[running[future]]), len(done) / len(jobs))
    return tuple(done[place] for place in range(len(jobs)))


def _label(job: Job) -> str:
    _, name, _, law, seed = job
    return f"{name} on {law.name}, seed {seed}"


def _bound(study: StudyConfig, law: WorkloadLaw) -> float:
    truth = study.mismatch.applied(load_truth(study.path(study.truth)))
    return fluid_tokens_per_s(study, truth, workload(study, law, study.steps, 1), blocks=min(10, study.steps))


def _rows(
    study: StudyConfig, workloads: Sequence[str], systems: Sequence[str], outcomes: Sequence[SystemRun], bounds: dict[str, float]
) -> Iterator[SystemRow]:
    for name in workloads:
        baseline = paces(study, outcomes, name, study.baseline)
        oracle = rate(paces(study, outcomes, name, ORACLE)).mean if ORACLE in systems else float("nan")
        for system in systems:
            runs = [outcome for outcome in outcomes if (outcome.workload, outcome.system) == (name, system)]
            tokens = rate(paces(study, outcomes, name, system))
            yield SystemRow(
                workload=name,
                system=system,
                tokens_per_s=tokens,
                over_baseline=ratio(paces(study, outcomes, name, system), baseline),
                of_oracle=tokens.mean / oracle,
                of_bound=tokens.mean / bounds[name],
                means=_means(runs),
                first_plan=runs[0].first_plan,
            )


def _over_baseline(
    study: StudyConfig, workloads: Sequence[str], systems: Sequence[str], outcomes: Sequence[SystemRun]
) -> dict[str, Interval]:
    return {
        system: mean_ratio(
            {name: (paces(study, outcomes, name, system), paces(study, outcomes, name, study.baseline)) for name in workloads}
        )
        for system in systems
    }


def paces(study: StudyConfig, outcomes: Sequence[SystemRun], workload_name: str, system: str) -> list[Pace]:
    """One per seed."""
    return [
        Pace.of(outcome.steps, study.batch)
        for outcome in outcomes
        if (outcome.workload, outcome.system) == (workload_name, system)
    ]


def _means(runs: Sequence[SystemRun]) -> dict[str, float]:
    rows = [asdict(outcome.summary) | {"plan_cpu_s": outcome.plan_cpu_s, "route_us": outcome.route_us} for outcome in runs]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "step": decision.step,
        "verdict": decision.verdict.value,
        "reason": decision.reason.value,
        "binding": decision.binding.value,
        "gain_s_per_step": decision.gain_s_per_step,
        "cost_s": decision.cost.total_s,
        "forecast_error": decision.forecast_error,
    }


def _point_json(point: SweepPoint) -> dict[str, Any]:
    return {
        "label": point.label,
        "baseline": point.baseline,
        "rows": [_flat(row) for row in point.rows],
        "over_baseline": {name: asdict(value) for name, value in point.over_baseline.items()},
    }


def _flat(row: SystemRow) -> dict[str, Any]:
    """Means of a run that the row has an interval for, keep the interval."""
    values = asdict(row)
    means = values.pop("means")
    return _finite(means | values)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no nan."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()}
