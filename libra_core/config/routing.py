"""Routing: which engine takes the next turn of a trajectory."""

from typing import Any, Final, Literal, get_args

from pydantic import Field, model_validator

from libra_core.config.base import Section

PolicyName = Literal[
    "cmlfq",
    "expected_cost",
    "mean_p90",
    "most_likely",
    "least_loaded",
    "sticky",
    "mlfq",
    "embedding",
    "tool_priority",
    "presorted",
]

BUCKET_POLICIES: Final = tuple(name for name in get_args(PolicyName) if name not in ("least_loaded", "sticky"))
"""Those that tell engines apart by their degree alone."""


class RoutingConfig(Section):
    """Engines of one tensor-parallel degree form a bucket. `routing: cmlfq` is short for `routing: {policy: cmlfq}`."""

    policy: PolicyName = "least_loaded"
    """`cmlfq` is `expected_cost`; `docs/routing.md` compares them."""
    start: Literal["smallest", "predicted"] = "smallest"
    """Where a trajectory begins: in the smallest bucket, or where what finished before says."""
    limits_tokens: tuple[int, ...] | None = None
    """Largest total of generated tokens meant for each bucket but the last. Unset: they follow quantiles of finished lengths."""
    limit_quantiles: tuple[float, ...] | None = None
    """Where these cut, one less than there are buckets. Unset: 0.8 for two, 0.5 and 0.9 for three, 0.5, 0.8 and 0.95 for four."""
    hysteresis: float = Field(default=0.5, ge=0)
    """A move must gain its price and this share of it on top (`cmlfq`)."""
    prefill_ahead: bool = True
    """When a move is foreseen at a tool's start, the target computes the context while the tool runs."""
    half_life_trajectories: float | None = Field(default=8192.0, gt=0)
    """Finished trajectories after which one counts half in the prefix tree. Unset (`null`): nothing is forgotten."""
    max_nodes: int = Field(default=400_000, ge=16)
    """Size of the prefix tree; a node takes about 400 bytes."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"policy": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _limits_ascend(self) -> "RoutingConfig":
        for name in ("limits_tokens", "limit_quantiles"):
            values: tuple[float, ...] = getattr(self, name) or ()
            if list(values) != sorted(set(values)) or any(value <= 0 for value in values):
                raise ValueError(f"routing.{name} must be positive and ascend; it is {list(values)}")
        if any(value >= 1 for value in self.limit_quantiles or ()):
            raise ValueError(f"routing.limit_quantiles are shares below 1; they are {list(self.limit_quantiles or ())}")
        return self
