"""What a study compares: files of truth and workloads, a cluster, systems."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from libra_core.config.base import Section
from libra_core.config.loading import apply_override, checked, located
from libra_core.config.paths import (
    DevicePath,
    FolderName,
    InputPath,
    LawPath,
    ModelPath,
    SystemsPath,
    TruthPath,
    place_paths,
)
from libra_core.errors import ConfigError
from libra_core.simulation.tables import read_mapping
from libra_core.simulation.truth import Mismatch
from libra_core.simulation.workload.laws import Parameter, WorkloadLaw, load_law


class SystemConfig(Section):
    """One system, as a choice of shared parts."""

    about: str = Field(min_length=1)
    """What it stands for, and how it was tuned."""
    mode: Literal["asynchronous", "colocated", "either"] = "asynchronous"
    """`either`: whichever the planner finds faster for the initial workload."""
    synchronous: bool = False
    """η = 0, whatever the study's staleness is."""
    split: Literal["planner", "uniform", "greedy", "hindsight", "fixed_fleet"] = "planner"
    """How GPUs are divided at the start. `planner`: by our planner for the initial workload. `uniform`: half and half, the first
    degree. `greedy`: the split at which the two sides' throughputs meet, the first degree. `hindsight`: the best of all splits
    and degrees in simulated runs of the whole workload on other seeds. `fixed_fleet`: half and half, engines as `fleet`."""
    degrees: tuple[int, ...] = (1, 2, 4, 8)
    """Of the engines that may be chosen."""
    fleet: tuple[tuple[int, int], ...] = ()
    """For `fixed_fleet`: `((tp, engines), …)`."""
    streamed: bool = False
    """Streamed steps, when the planner finds them better."""
    age_slack: int = Field(default=0, ge=0)
    kv_fill: float | None = Field(default=0.7, gt=0, le=1)
    """Unset: no cap."""
    mixed: bool = False
    """Whether the planner may propose mixed fleets."""
    router: str | None = None
    """A policy of `libra_core.routing` for mixed fleets; unset: least loaded."""
    replanning: Literal["none", "planner", "idle_ratio"] = "none"
    corrects: bool = False
    """With `planner` replanning: believed times are scaled by those that were measured."""
    elastic: bool = False
    """Replicas change sides through the hybrid pool, without rebuilding the trainer."""
    most_calls_first: bool = False
    overlap: bool = False
    """Publications overlap with training; the trainer waits only while it sends."""
    publication_s: float | None = Field(default=None, ge=0)
    """Slow synchronisation, such as over files and restarts, or a slow switch of sides; unset: the truth's."""
    lengths_known: bool = False
    """Plans for the trajectories that come instead of those that went, and moves for nothing: a bound, not a system."""

    @model_validator(mode="after")
    def _one_publication(self) -> "SystemConfig":
        if self.overlap and self.publication_s is not None:
            raise ValueError("publication_s is a publication that the trainer waits for as a whole; leave overlap out")
        return self

    @model_validator(mode="after")
    def _fleet_is_named(self) -> "SystemConfig":
        if (self.split == "fixed_fleet") != bool(self.fleet):
            raise ValueError("fleet names the engines of split: fixed_fleet, and of no other")
        return self


class SweepConfig(Section):
    """The study again under other settings, one after the other."""

    about: str = Field(min_length=1)
    """What changes: the axis of its figure."""
    common: tuple[str, ...] = ()
    """`key=value` of the study that all its points have, such as fewer systems."""
    points: dict[str, tuple[str, ...]] = Field(min_length=1)
    """Label on the axis, and the `key=value` that make it."""


class StudyConfig(Section):
    """One comparison. Paths are relative to the study's file, those of `--set` to the working directory."""

    name: FolderName
    truth: TruthPath
    workloads: tuple[LawPath, ...] = Field(min_length=1)
    history: InputPath | None = None
    """JSONL of recorded trajectories (as of `libra plan --history`) that steps are drawn from instead of the workloads' laws."""
    systems: SystemsPath
    """File that maps names to systems."""
    chosen: tuple[str, ...] = ()
    """Which of them; all when empty."""
    baseline: str = "areal_static_optimal"
    """What ratios are over."""
    gpus: int = Field(default=48, ge=2)
    gpus_per_node: int = Field(default=8, ge=1)
    device: DevicePath = "a800_sxm_80"
    """What planners believe: a device and a model of `libra_core.costs`."""
    model: ModelPath = "qwen3_14b"
    believes: Literal["evaluator", "truth"] = "evaluator"
    """`truth`: planners know the tables, without the mismatch; as after a calibration on the cluster."""
    groups_per_step: int = Field(default=16, ge=1)
    group_size: int = Field(default=16, ge=2)
    staleness: int = Field(default=1, ge=0)
    steps: int = Field(default=200, ge=8)
    skipped_steps: int = Field(default=4, ge=0)
    """Steps at the start that are not counted."""
    seeds: int = Field(default=3, ge=1)
    replan_every: int = Field(default=5, ge=1)
    """Steps between two replanning rounds."""
    mismatch: Mismatch = Mismatch()
    forecast_error: float = Field(default=0.0, ge=0, lt=1)
    """The planner's training time is believed to be smaller by this share and its decode time larger."""
    law: dict[str, float] = Field(default_factory=dict[str, float])
    """Parameters of all workloads that have another value here, such as `timeout_length_correlation`."""
    drift_factor: float | None = Field(default=None, gt=0)
    """Lengths drift by so much in all workloads; unset: as each says."""
    sweeps: dict[str, SweepConfig] = Field(default_factory=dict[str, SweepConfig])
    folder: str = "."

    @model_validator(mode="after")
    def _some_steps_count(self) -> "StudyConfig":
        if self.skipped_steps >= self.steps:
            raise ValueError(f"skipped_steps = {self.skipped_steps} leaves none of {self.steps} steps to count; lower it")
        return self

    @property
    def batch(self) -> int:
        return self.groups_per_step * self.group_size

    def path(self, name: str) -> Path:
        return Path(self.folder) / name


def load_study(path: str | Path, overrides: Sequence[str] = (), **changes: Any) -> StudyConfig:
    """A file with `changes`, then `a.b=c` overrides. Raises `ConfigError`."""
    file = located(path, "study")
    folder = file.absolute().parent
    values = read_mapping(file, "study") | changes | {"folder": str(folder)}
    place_paths(values, StudyConfig, folder)
    for override in overrides:
        apply_override(values, override, StudyConfig)
    return checked(values, StudyConfig, str(file))


def varied(study: StudyConfig, overrides: Sequence[str]) -> StudyConfig:
    """The study with `key=value` changes of its own file and without its sweeps. Raises `ConfigError`."""
    values = study.model_dump(mode="json") | {"sweeps": {}}
    for override in overrides:
        apply_override(values, override, StudyConfig, Path(study.folder))
    return checked(values, StudyConfig, f"{study.name} with {', '.join(overrides)}")


def load_laws(study: StudyConfig) -> dict[str, WorkloadLaw]:
    """The study's workloads as it changes them, by name. Raises `ConfigError`."""
    laws = [load_law(study.path(name)) for name in study.workloads]
    for name in study.law:
        if laws and name not in laws[0].parameters():
            raise ConfigError(f"law.{name} is no parameter of a workload; there are {', '.join(laws[0].parameters())}")
    return {law.name: _changed(study, law) for law in laws}


def _changed(study: StudyConfig, law: WorkloadLaw) -> WorkloadLaw:
    changes = {name: Parameter(value=value, source=f"set by the study {study.name}") for name, value in study.law.items()}
    law = law.model_copy(update=changes)
    return law if study.drift_factor is None else law.with_drift(factor=study.drift_factor)


def load_systems(study: StudyConfig) -> dict[str, SystemConfig]:
    """The chosen systems in the order of the file. Raises `ConfigError` for an unknown name."""
    path = study.path(study.systems)
    given = read_mapping(path, "systems")
    systems = {name: checked(values, SystemConfig, f"{path}: {name}") for name, values in given.items()}
    unknown = [name for name in study.chosen if name not in systems]
    if unknown:
        raise ConfigError(f"no system {unknown[0]!r} in {path}; there are {', '.join(systems)}")
    return {name: system for name, system in systems.items() if not study.chosen or name in study.chosen}
