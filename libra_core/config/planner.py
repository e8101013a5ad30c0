"""What only the planner needs to know: the cluster, the lengths to plan for, and which kinds of run it may propose."""

from typing import Literal

from pydantic import Field, model_validator

from libra_core.config.base import Section
from libra_core.config.paths import DevicePath, InputPath, ModelPath


class PlannerConfig(Section):
    """Inputs of `libra plan`. Staleness, slack, KV share, batch and lengths come from `rollout`."""

    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=8, ge=1)
    num_gpus: int | None = Field(default=None, ge=1)
    """Unset: all GPUs of all nodes. Fewer leave the last node partly used."""
    device: DevicePath = "a800_sxm_80"
    """Device profile: a name in `configs/hardware` or a path. The CPU backend is always planned on `cpu_host`."""
    profile: InputPath | None = None
    """Profile of this host by `libra calibrate`: engine and trainer costs of plans and forecasts on the CPU backend, where the
    model is the same. Unset: the kernels of `device`, on the CPU backend those of `cpu_host` (orders of magnitude only)."""
    model: ModelPath | None = None
    """Model facts: a name in `configs/model`, an HF folder or a `config.json`. Unset: `model.path`."""
    history: InputPath | None = None
    """JSONL of finished trajectories, where no earlier run under `run.root` had this workload; unset: `lengths`."""
    lengths: Literal["r2e_gym", "search_r1", "dapo_math"] = "r2e_gym"
    """Which generated lengths stand in for a history (`docs/planner.md`). Not set: those of the workload, shortened to what
    `rollout` allows."""
    half_life_steps: float = Field(default=10.0, gt=0)
    """A trajectory that is so many optimizer steps older counts half."""
    modes: tuple[Literal["asynchronous", "colocated"], ...] = Field(default=("asynchronous", "colocated"), min_length=1)
    """Modes that may be proposed."""
    streamed: Literal["search", "always", "never"] = "search"
    """Whether steps are streamed, or the planner decides."""
    router_accuracy: float | None = Field(default=None, ge=0, le=1)
    """Measured share of trajectories that the router serves in their own class. Unset with `router_tail_recall`: no mixed fleets
    are proposed."""
    router_tail_recall: float | None = Field(default=None, ge=0, le=1)
    """Measured share of the longest class that the router serves there."""
    drift: float = Field(default=1.3, ge=1)
    """How far training work may grow against rollout work before the next plan; sizes the hybrid pool."""

    @model_validator(mode="after")
    def _counts_agree(self) -> "PlannerConfig":
        if self.num_gpus is not None and not (self.nodes - 1) * self.gpus_per_node < self.num_gpus <= self.total_slots:
            raise ValueError(
                f"planner.num_gpus ({self.num_gpus}) does not need exactly planner.nodes = {self.nodes} nodes of "
                f"{self.gpus_per_node}; change one of the three"
            )
        if (self.router_accuracy is None) != (self.router_tail_recall is None):
            raise ValueError("planner.router_accuracy and planner.router_tail_recall are measured together; set both or neither")
        return self

    @property
    def total_slots(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def total_gpus(self) -> int:
        return self.total_slots if self.num_gpus is None else self.num_gpus
