"""Training: layout, loss, optimizer, checkpoints, publication of weights."""

from typing import Literal

from pydantic import Field, model_validator

from libra_core.config.base import Section


class LayoutConfig(Section):
    """Megatron-Core parallelism of the core training world."""

    tp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    dp: int = Field(default=1, ge=1)
    distributed_optimizer: bool = False
    sequence_parallel: bool = False
    recompute: bool = False
    """Recompute all activations in the backward pass."""

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp


class LossConfig(Section):
    """Policy loss; the table of kinds is in `libra_core/algorithms/losses.py`."""

    kind: Literal["token_mean", "sequence_mean", "dr_grpo", "gspo", "cispo"] = "token_mean"
    """`token_mean` divides by the loss tokens of the global batch (DAPO)."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    """Upper clip of the importance ratio; larger than `clip_low` is clip-higher."""
    clip_dual: float | None = Field(default=3.0, gt=1)
    """Largest ratio by which a token of negative advantage counts (dual clip, arXiv 1912.09729): such a token is beyond
    `clip_high` and still has a gradient, which grows with its ratio. `null` leaves it unbounded. `cispo` bounds ratios itself."""
    old_logprobs: Literal["sampler", "recompute"] = "sampler"
    """Where the ratio's denominator comes from: the engine, or a forward pass before the update."""
    importance_cap: float | None = Field(default=2.0, gt=1)
    """Truncated importance sampling between sampler and recomputed log-probs; unused with `sampler`."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the KL to the reference model (the weights the run started from); 0 keeps no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: float = Field(default=0.0, ge=0)
    advantage: Literal["group_std", "group_mean"] = "group_std"
    """(r - mean)/std of the group, or r - mean (Dr.GRPO)."""
    drop_without_signal: bool = True
    """Leave groups whose samples all scored alike out of the batch and of its divisor (DAPO's filter); their policy gradient
    is zero. Ignored while a KL or entropy term needs them."""


class OptimizerConfig(Section):
    """Adam with linear warm-up."""

    learning_rate: float = Field(default=4e-4, gt=0)
    warmup_steps: int = Field(default=5, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    beta1: float = Field(default=0.9, gt=0, lt=1)
    beta2: float = Field(default=0.95, gt=0, lt=1)
    clip_grad: float = Field(default=1.0, gt=0)


class CheckpointConfig(Section):
    """Sharded checkpoints in the run folder."""

    every_steps: int = Field(default=10, ge=0)
    """0 writes none but the last."""
    keep: int = Field(default=2, ge=1)


class TrainingConfig(Section):
    """The trainer."""

    steps: int = Field(default=40, ge=1)
    layout: LayoutConfig = LayoutConfig()
    streamed: bool | None = None
    """Train each complete group as it comes and step when the batch is whole: the same update, but the trainer does not wait
    for the slowest group before it starts. Unset: on, except in colocated mode."""
    micro_batch_tokens: int = Field(default=4096, ge=16)
    """Token budget of one packed micro-batch; a longer sequence travels alone."""
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    update_deadline_s: float = Field(default=600.0, gt=0)
    start_deadline_s: float = Field(default=300.0, gt=0)
    collective_timeout_s: float = Field(default=120.0, gt=0)
    """A rank that waits longer for another one gives up."""

    @model_validator(mode="after")
    def _sequence_parallel_needs_tp(self) -> "TrainingConfig":
        if self.layout.sequence_parallel and self.layout.tp == 1:
            raise ValueError("training.layout.sequence_parallel needs tp of at least 2, got tp 1; switch it off or raise tp")
        return self


class PublicationConfig(Section):
    """How new weights reach the engines."""

    transport: Literal["auto", "file", "broadcast"] = "auto"
    """`file`: one safetensors file per version in shared memory (one host). `broadcast`: a process group (many hosts).
    `auto`: `file` with a Ray of our own, `broadcast` on a cluster that is joined."""
    order: Literal["together", "rolling"] = "together"
    """All engines swap at once, or one after another, so that the others go on generating."""
    in_flight: Literal["keep", "abort"] = "keep"
    """Running requests continue under the new weights, or return with their partial tokens and are sent again."""
    recompute_kv: bool = True
    """Clear KV and prefix cache, so that running requests are recomputed under the new weights."""
    canary: bool = True
    """Score one prompt on every engine and on the trainer after each publication."""
    canary_tolerance: float | None = Field(default=None, gt=0)
    """Largest absolute log-prob difference allowed. Unset: 1e-3 in float32 on CPU, 2e-2 in float32 on GPU, whose kernels may
    round products to TF32, and 0.3 in bfloat16."""
    overlap: bool = True
    """The trainer goes on as soon as its own part is done, the transfer, while the engines load; what they answer is looked at
    before the next publication or checkpoint. Not in colocated mode, where engines and trainer take turns."""
    deadline_s: float = Field(default=120.0, gt=0)
