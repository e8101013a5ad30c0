"""A comparison of trainings that run: which configurations, how many paired seeds, and what a target is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from libra_core.config.base import Section
from libra_core.config.loading import checked, load_config, located
from libra_core.config.models import LibraConfig
from libra_core.config.paths import FolderName, InputPath, place_paths
from libra_core.yaml_text import read_mapping

_MARK = "baselines"
"""The key that tells such a file from a simulated study."""


class ComparisonConfig(Section):
    """Every baseline runs once a seed; runs of one seed see the same prompts and sampling seeds. Paths start from its file."""

    name: FolderName
    """Also of the MLflow experiment that all runs are in."""
    baselines: tuple[InputPath, ...] = Field(min_length=1)
    """Configurations of `libra train`; a baseline is called as its file."""
    chosen: tuple[str, ...] = ()
    """Which of them; all when empty."""
    reference: str = "areal_static_optimal"
    """What ratios are over, run by run of equal seed."""
    seeds: int = Field(default=2, ge=1)
    steps: int = Field(default=12, ge=1)
    skipped_steps: int = Field(default=2, ge=0)
    """Steps at the start that throughput leaves out: caches and processes warm up."""
    common: tuple[str, ...] = ()
    """`key=value` of every training."""
    changes: dict[str, tuple[str, ...]] = Field(default_factory=dict[str, tuple[str, ...]])
    """`key=value` of one baseline, by name."""
    reward_target: float | None = None
    """Mean reward whose first crossing is the time to reward; unset: not asked."""
    reward_window: int = Field(default=3, ge=1)
    """Steps whose mean reward must reach it: one batch may be lucky."""
    deadline_s: float = Field(default=1800.0, gt=0)
    """How long one training may take in all; then it is ended, and its row says so."""

    @model_validator(mode="after")
    def _some_steps_count(self) -> "ComparisonConfig":
        if self.skipped_steps >= self.steps:
            raise ValueError(f"skipped_steps = {self.skipped_steps} leaves none of {self.steps} steps to count; lower it")
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> "ComparisonConfig":
        names = [Path(file).stem for file in self.baselines]
        if len(set(names)) < len(names):
            raise ValueError(f"two baselines have the same file name in {', '.join(names)}; rename one file")
        for key, given in (("chosen", self.chosen), ("changes", self.changes)):
            unknown = [name for name in given if name not in names]
            if unknown:
                raise ValueError(f"{key} names {unknown[0]!r}, which is no baseline; there are {', '.join(names)}")
        return self

    @property
    def files(self) -> dict[str, str]:
        """Of the chosen baselines, in the order of the file."""
        named = {Path(file).stem: file for file in self.baselines}
        return {name: file for name, file in named.items() if not self.chosen or name in self.chosen}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTraining:
    """One run of a comparison, as `libra train` is asked for it."""

    baseline: str
    seed: int
    file: str
    overrides: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.baseline}-s{self.seed}"

    def load(self) -> LibraConfig:
        """Raises `ConfigError` where the baseline cannot run on its backend."""
        return load_config(self.file, self.overrides)


def compares_trainings(path: str | Path) -> bool:
    """Whether this file of a study is a comparison of trainings. Raises `ConfigError` when it cannot be read."""
    return _MARK in _read(located(path, "study"))


def load_comparison(path: str | Path, **changes: Any) -> ComparisonConfig:
    """Raises `ConfigError` with the first mistake."""
    file = located(path, "study")
    values = _read(file) | changes
    place_paths(values, ComparisonConfig, file.absolute().parent)
    return checked(values, ComparisonConfig, str(file))


def asked_trainings(comparison: ComparisonConfig, overrides: Sequence[str] = ()) -> list[AskedTraining]:
    """Seed after seed, so that a comparison that is ended early has whole rounds; `overrides` win over the file's."""
    return [
        AskedTraining(
            baseline=name,
            seed=seed,
            file=file,
            overrides=(
                *comparison.common,
                *comparison.changes.get(name, ()),
                f"training.steps={comparison.steps}",
                f"seed={seed}",
                f"tracking.baseline={name}",
                *overrides,
            ),
        )
        for seed in range(1, comparison.seeds + 1)
        for name, file in comparison.files.items()
    ]


def _read(file: Path) -> dict[str, Any]:
    return dict(read_mapping(file, what="study", examples="configs/study/"))
