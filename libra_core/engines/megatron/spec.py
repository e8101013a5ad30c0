"""What one trainer rank needs to know to start."""

from dataclasses import dataclass
from typing import Literal

from libra_core.config.training import TrainingConfig
from libra_core.elastic.spec import ElasticSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """The same on every rank but for `rank`. Picklable: it is sent to the processes of the training world."""

    model_path: str
    dtype: Literal["float32", "bfloat16"]
    device: Literal["cpu", "cuda"]
    rank: int
    world_size: int
    master_addr: str
    master_port: int
    seed: int
    training: TrainingConfig
    temperature: float
    """Of the sampler: log-probs in the loss are those of logits / temperature."""
    max_new_tokens: int = 64
    """`rollout.max_new_tokens`: the constant that `dr_grpo` divides by."""
    elastic: ElasticSpec | None = None
    """The core's side channel to hybrid replicas; None where there are none, and on the hybrid replicas themselves."""
