"""What the deployment `libra-compare` can be asked for."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from libra_core.config.comparison import ComparisonConfig, compares_trainings, load_comparison
from libra_core.errors import ConfigError
from libra_core.simulation.study.config import StudyConfig, load_study


class CompareParameters(BaseModel):
    """One study."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    study: str = Field(default="configs/study/48gpu.yaml", description="YAML file, or the name of a shipped study.")
    systems: list[str] = Field(default=[], description="Names of systems; all when empty.")
    workloads: list[str] = Field(default=[], description="Names of workloads, such as `search_r1`; all when empty.")
    seeds: int | None = Field(default=None, ge=1, description="Paired seeds.")
    steps: int | None = Field(default=None, ge=1, description="Optimizer steps of each run; of a simulated one at least 8.")
    staleness: int | None = Field(default=None, ge=0, description="η, the same for all systems that are not synchronous.")
    sweeps: list[str] = Field(default=[], description="Names of the study's sweeps; all when empty, `none` for none.")
    overrides: list[str] = Field(default=[], description="Further changes, such as `gpus=96` or `mismatch.train=1.3`.")
    root: str = Field(default="runs", description="The study's folder and MLflow's database lie under it.")
    mlflow: str | None = Field(default=None, description="Address of MLflow; unset: its database under root; `off`: none.")
    processes: int = Field(default=2, ge=1, description="Runs simulated at once.")

    def load_trainings(self) -> ComparisonConfig:
        """Of a file that names baselines; raises `ConfigError`."""
        for option, given in (("--workloads", self.workloads), ("--sweeps", self.sweeps), ("--staleness", self.staleness)):
            if given:
                raise ConfigError(
                    f"{option} is for simulated studies, and {self.study} compares trainings; change their own keys by --set, "
                    "for example --set rollout.staleness=2"
                )
        changes: dict[str, Any] = {"seeds": self.seeds, "steps": self.steps, "chosen": self.systems or None}
        return load_comparison(self.study, **{name: value for name, value in changes.items() if value is not None})

    def load(self) -> StudyConfig:
        """Raises `ConfigError`."""
        if compares_trainings(self.study):
            raise ConfigError(
                f"{self.study} compares real trainings; run `libra compare {self.study}`, the deployment only simulates"
            )
        changes: dict[str, Any] = {name: getattr(self, name) for name in ("seeds", "steps", "staleness")}
        changes = {name: value for name, value in changes.items() if value is not None}
        if self.systems:
            changes["chosen"] = self.systems
        if self.workloads:
            changes["workloads"] = [name if name.endswith(".yaml") else f"workloads/{name}.yaml" for name in self.workloads]
        study = load_study(self.study, overrides=self.overrides, **changes)
        unknown = [name for name in self.sweeps if name not in (*study.sweeps, "none")]
        if unknown:
            raise ConfigError(f"{self.study} has no sweep {unknown[0]!r}; there are {', '.join(study.sweeps) or 'none'}")
        kept = {name: sweep for name, sweep in study.sweeps.items() if not self.sweeps or name in self.sweeps}
        return study.model_copy(update={"sweeps": kept})
