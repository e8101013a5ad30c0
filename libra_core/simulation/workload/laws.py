"""Laws of the generated workloads: every parameter is a number with its source, in `configs/study/workloads`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from libra_core.config.base import Section
from libra_core.simulation.tables import load_table


class Parameter(Section):
    """A number and where it comes from."""

    value: float
    source: str = Field(min_length=1)


class LengthDrift(Section):
    """How lengths change over the run: a factor from `1` to `factor`, mean turns and tokens per turn sharing it."""

    kind: Literal["flat", "up", "down", "up_down", "waves"] = "flat"
    factor: float = Field(default=1.0, gt=0)
    waves: int = Field(default=3, ge=1)
    turns_share: float = Field(default=0.6, ge=0, le=1)
    """Exponent with which turns follow the level; tokens per turn take the rest. All of it goes to the tokens where a trajectory
    has one turn."""
    source: str = "none"


class WorkloadLaw(Section):
    """One kind of trajectory. Medians with the standard deviation of the natural logarithm (`sigma`)."""

    name: str
    prompt_tokens: Parameter
    prompt_sigma: Parameter
    turns: Parameter
    turns_sigma: Parameter
    most_turns: Parameter
    turn_tokens: Parameter
    turn_sigma: Parameter
    """Between turns of one trajectory."""
    trajectory_sigma: Parameter
    """Between trajectories, of their tokens per turn."""
    turns_tokens_correlation: Parameter
    """Of the number of turns with the tokens per turn, over trajectories."""
    prompt_share: Parameter
    """Share of the variance between trajectories that all samples of a prompt have in common."""
    tool_tokens: Parameter
    tool_tokens_sigma: Parameter
    most_tool_tokens: Parameter
    tool_s: Parameter
    tool_sigma: Parameter
    tool_limit_s: Parameter
    """A tool that takes longer is cut off: its status is `timeout`."""
    timeout_share: Parameter
    """Share of calls that hang until the limit, on average."""
    timeout_sigma: Parameter
    """Of a trajectory's own share around it."""
    timeout_prompt_share: Parameter
    timeout_length_correlation: Parameter
    error_share: Parameter
    longest_tokens: Parameter
    drift: LengthDrift = LengthDrift()

    def parameters(self) -> dict[str, Parameter]:
        """Name and value of each, in the order of the fields."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if isinstance(value, Parameter)}

    def changed(self, **factors: float) -> "WorkloadLaw":
        """Parameters multiplied; for sensitivity studies, and said so in their source."""
        update = {
            name: Parameter(value=getattr(self, name).value * factor, source=f"{factor:g} times: {getattr(self, name).source}")
            for name, factor in factors.items()
        }
        return self.model_copy(update=update)

    def with_drift(self, **changes: object) -> "WorkloadLaw":
        return self.model_copy(update={"drift": self.drift.model_copy(update=changes)})


def load_law(path: str | Path) -> WorkloadLaw:
    """Raises `ConfigError` with the file and the first mistake."""
    return load_table(path, WorkloadLaw, "workload")
