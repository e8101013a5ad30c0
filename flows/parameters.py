"""What the deployment `libra-train` can be asked for; Prefect's UI makes its form from this model."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from libra_core.config import LibraConfig, load_config
from libra_core.config.base import sections_of

YamlFile = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"\.ya?ml$"})]
_SECTIONS = "|".join(name for name, info in LibraConfig.model_fields.items() if sections_of(info.annotation))
_PLAIN = "|".join(name for name, info in LibraConfig.model_fields.items() if not sections_of(info.annotation))
Override = Annotated[
    str, WithJsonSchema({"type": "string", "pattern": rf"^(({_SECTIONS})(\.\w+)+|{_PLAIN})=", "examples": ["training.steps=10"]})
]
"""Prefect checks a form against the schema before it makes a run; what only `load` can see, the flow says."""


class TrainParameters(BaseModel):
    """One training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: YamlFile = Field(
        default="configs/experiment/quickstart.yaml", description="YAML file; `configs/…` may be one that Libra ships."
    )
    overrides: list[Override] = Field(default=[], description="Changes to it, such as `training.steps=10`.")
    resume: str | None = Field(default=None, description="Run folder to go on with, or one of its checkpoints/step-….")

    def load(self) -> LibraConfig:
        """Raises `ConfigError`."""
        resume = [] if self.resume is None else [f"run.resume={self.resume}"]
        return load_config(self.config, [*self.overrides, *resume])


class ReplanParameters(BaseModel):
    """Replanning of a training that runs in another process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str | None = Field(default=None, description="Run folder. Unset: the newest one under `root` that runs.")
    root: str = Field(default="runs", description="Where run folders lie.")
    deadline_s: float = Field(default=600.0, gt=0, description="How long to wait for the training to replan.")
