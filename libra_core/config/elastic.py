"""GPUs that may change sides, and when the plan is compared (docs/elasticity.md)."""

from typing import Literal

from pydantic import Field

from libra_core.config.base import Section


class ElasticConfig(Section):
    """The hybrid pool: sets of GPUs as large as one data-parallel replica, which serve rollouts or train."""

    hybrid_replicas: int = Field(default=0, ge=0)
    """Replicas that may train. Their engines are the last of `rollout.engines` and serve when the run starts."""
    contribution_s: float = Field(default=30.0, gt=0)
    """How long a step waits for the gradient of a replica that trains; then it goes on without, and the core trains its share."""
    drain_s: float = Field(default=60.0, gt=0)
    """How long an engine may take to hand its trajectories over."""
    join_s: float = Field(default=300.0, gt=0)
    """How long a replica may take from its first connection until it takes part in a step, and an engine that came in a run may
    wait for a broadcast of weights; the core's own steps are in it."""
    idle_engine: Literal["sleep", "stop"] = "sleep"
    """What becomes of an engine while its GPUs train. `sleep`: it keeps its process; on GPUs its weights go to host memory and
    its KV cache is freed (vLLM's sleep mode), on CPU it keeps both. `stop`: its processes end, and it starts anew. One with
    another `rollout.kv_transfer.connector` than `shared_folder` is always stopped."""
    check_every_steps: int = Field(default=50, ge=1)
    """Weights of core and replicas are compared at activation and every so many steps."""


class ReplanningConfig(Section):
    """A replanning round, every `every_steps` iterations. Moves flip hybrid replicas, or re-partition the engines; see
    `docs/elasticity.md`."""

    every_steps: int = Field(default=0, ge=0)
    """0: only when it is asked for from outside (deployment `libra-replan`)."""
    first_step: int = Field(default=4, ge=1)
    """Iterations whose measurements the first round needs."""
    horizon_steps: int = Field(default=200, ge=1)
    """Steps over which a gain must repay its cost; what is left of the run, if that is less."""
    margin: float = Field(default=0.2, ge=0)
    """Share by which the savings must exceed the cost."""
    cooldown_steps: int = Field(default=20, ge=0)
    """Steps after a switch without another."""
    hysteresis: float = Field(default=0.5, ge=0)
    """By how much the gain that is asked for grows when the move leads back to the plan that was just left."""
    flip_cost_s: float = Field(default=60.0, gt=0)
    """What a flip is believed to cost until one was measured."""
    repartition: bool = False
    """Whether the GPUs of `rollout.engines` may be divided into engines of another tp while the run goes on. Without hybrid
    replicas only, and from engines of one tp."""
    repartition_cost_s: float = Field(default=180.0, gt=0)
    """What a re-partition is believed to cost until one was measured."""
    half_life_steps: float = Field(default=3.0, gt=0)
    """A measured step or trajectory that is so many steps older counts half in the profile."""
    realised_after_steps: int = Field(default=4, ge=1)
    """Iterations before and after a switch whose mean times give its realised gain."""
