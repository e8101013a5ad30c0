"""Where and how the run executes: backend, Ray, Prefect, MLflow."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from libra_core.config.base import Section
from libra_core.config.paths import FolderName, OutputPath, one_folder


class BackendConfig(Section):
    """Device and cluster."""

    kind: Literal["cpu", "gpu", "simulated"] = "cpu"
    """`simulated`: virtual time, see `simulation`; nothing is started."""
    ray_address: str = "local"
    """`local` starts a private Ray on this machine; otherwise the address of a running cluster."""
    threads_per_process: int = Field(default=1, ge=1)
    """OMP_NUM_THREADS of every engine and trainer process."""
    min_free_memory_gib: float = Field(default=6.0, ge=0)
    """A start with less free memory is refused (CPU backend)."""


class OrchestrationConfig(Section):
    """Prefect."""

    iteration_as: Literal["subflow", "inline"] = "subflow"
    """`inline` runs an iteration's tasks in the parent flow: for steps of a second or less."""
    server_outage_s: float = Field(default=300.0, ge=0)
    """How long an iteration waits for an unreachable Prefect server before the run fails."""


class TrackingConfig(Section):
    """MLflow and the run folder."""

    mlflow_uri: str | None = None
    """Unset: `MLFLOW_TRACKING_URI` of the environment, else `mlflow.db` under the run root. `off` writes only the run folder."""
    experiment: str = "libra"
    """Unless `mlflow_uri` names a server, it is a folder's name too."""
    baseline: str = "libra"
    """Tag that comparisons group by."""
    sample_trajectories: int = Field(default=4, ge=0)
    """Trajectories logged as text every `sample_every_steps`."""
    sample_every_steps: int = Field(default=10, ge=1)

    @model_validator(mode="after")
    def _experiment_has_a_folder(self) -> "TrackingConfig":
        if self.mlflow_uri is None:
            one_folder(self.experiment)
        return self

    @field_validator("mlflow_uri", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        """YAML reads a bare `off` as false."""
        return "off" if value is False else value


class RunConfig(Section):
    """Where results go."""

    name: FolderName = "run"
    """Begins the name of the run folder."""
    root: OutputPath = "runs"
    """Run folders are made under it, and the warm-start cache and databases live beside them. Relative to the working
    directory."""
    resume: OutputPath | None = None
    """Run folder to continue from its newest whole checkpoint, or one of its `checkpoints/step-…`. Relative to the working
    directory."""

    @property
    def resumed_folder(self) -> Path | None:
        """Folder of the run that is continued, also where one of its checkpoints is named."""
        if self.resume is None:
            return None
        path = Path(self.resume).resolve()
        return path.parent.parent if path.parent.name == "checkpoints" else path

    @property
    def resumed_checkpoint(self) -> Path | None:
        """The checkpoint that is named; None where the newest whole one is meant."""
        path = None if self.resume is None else Path(self.resume).resolve()
        return path if path is not None and path != self.resumed_folder else None
