"""What the deployment `libra-train` can be asked for; Prefect's UI makes its form from this model."""

import json

from pydantic import BaseModel, ConfigDict, Field

from libra_core.config import LibraConfig, load_config


class TrainParameters(BaseModel):
    """One training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str = Field(default="configs/experiment/quickstart.yaml", description="YAML file, relative to the repository.")
    overrides: list[str] = Field(default=[], description="Changes to it, such as `training.steps=10`.")
    resume: str | None = Field(default=None, description="Run folder to continue from its newest checkpoint.")

    def load(self) -> LibraConfig:
        """Raises `ConfigError`."""
        resume = [] if self.resume is None else [f"run.resume={json.dumps(self.resume)}"]
        return load_config(self.config, [*self.overrides, *resume])


class ReplanParameters(BaseModel):
    """A look at the plan of a training that runs in another process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str | None = Field(default=None, description="Run folder. Unset: the newest one under `root` that runs.")
    root: str = Field(default="runs", description="Where run folders lie.")
    deadline_s: float = Field(default=600.0, gt=0, description="How long to wait for the training to look.")
