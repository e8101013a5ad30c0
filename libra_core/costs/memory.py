"""Memory of a trainer rank by Megatron-Core's real sharding.

Per parameter: 2 bytes of weights and 4 of FP32 gradients on every rank that holds it, 12 of optimizer state (FP32 master and two
moments) that the distributed optimizer divides over its data-parallel ranks. Activations of the layers follow Korthikanti et al.
(arXiv 2205.05198), rewritten for gated feed-forwards, grouped queries and FlashAttention, at the longest packed micro-batch.
"""

from dataclasses import dataclass
from functools import lru_cache

from libra_core.costs.facts import ModelFacts
from libra_core.costs.layouts import TrainingShape, stage_layers

WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 12
LOGIT_BYTES = 16
"""Per logit: BF16 logits and gradient, FP32 log-probs, probabilities and gradient (`engines/megatron/vocab_logprobs.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainMemory:
    """Per GPU, of the fullest stage."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    workspace_bytes: float

    @property
    def total_bytes(self) -> float:
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.logits_bytes
            + self.workspace_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParameters:
    """Of one rank."""

    replicated: float
    """Attention, embeddings and dense feed-forward: copies on cp·dp ranks."""
    experts: float
    """Copies on tp·cp·dp/ep ranks."""

    @property
    def total(self) -> float:
        return self.replicated + self.experts


def stage_parameters(model: ModelFacts, shape: TrainingShape, *, first: bool, last: bool) -> StageParameters:
    """Parameters on one rank of the first, last or a middle stage (the largest number of layers)."""
    layers = stage_layers(model, shape.pp)
    experts = layers * model.num_experts * model.expert_parameters / shape.ep if model.is_moe else 0.0
    dense = model.layer_parameters - (model.num_experts * model.expert_parameters if model.is_moe else 0)
    tables = int(first) + int(last and (shape.pp > 1 or not model.tied_embeddings))
    return StageParameters(
        replicated=(layers * dense + tables * model.vocab_size * model.hidden_size) / shape.tp, experts=experts
    )


def train_memory(
    model: ModelFacts, shape: TrainingShape, longest_tokens: float, num_micro_batches: int, workspace_bytes: float
) -> TrainMemory:
    """Of the fuller of the first stage (most micro-batches in flight) and the last stage (logits).

    Args:
        longest_tokens: no trajectory is longer; a packed micro-batch holds at least this.
    """
    tokens = max(float(shape.micro_batch_tokens), longest_tokens) / shape.cp
    first = _stage(model, shape, tokens, min(shape.pp, num_micro_batches), last=shape.pp == 1)
    if shape.pp == 1:
        return _with_workspace(first, workspace_bytes)
    final = _stage(model, shape, tokens, 1, last=True)
    return _with_workspace(max(first, final, key=lambda stage: stage.total_bytes), workspace_bytes)


def _stage(model: ModelFacts, shape: TrainingShape, tokens: float, in_flight: int, *, last: bool) -> TrainMemory:
    is_first = not last or shape.pp == 1
    held = stage_parameters(model, shape, first=is_first, last=last)
    shards = shape.cp * shape.dp if shape.distributed_optimizer else 1
    expert_shards = max(1, shape.stage_gpus // shape.ep) if shape.distributed_optimizer else 1
    per_layer, kept = layer_activation_bytes(model, shape)
    layers = stage_layers(model, shape.pp)
    activations = tokens * layers * in_flight * kept + (tokens * per_layer if shape.recompute else 0.0)
    return TrainMemory(
        weights_bytes=WEIGHT_BYTES * held.total,
        gradients_bytes=GRADIENT_BYTES * held.total,
        optimizer_bytes=OPTIMIZER_BYTES * (held.replicated / shards + held.experts / expert_shards),
        activations_bytes=activations,
        logits_bytes=LOGIT_BYTES * tokens * model.vocab_size / shape.tp if last else 0.0,
        workspace_bytes=0.0,
    )


@lru_cache(maxsize=512)
def layer_activation_bytes(model: ModelFacts, shape: TrainingShape) -> tuple[float, float]:
    """Per token and layer: (all activations of one layer, those kept until the backward pass)."""
    spread = shape.tp if shape.sequence_parallel else 1
    hidden = model.hidden_size
    ffn = model.experts_per_token * model.expert_ffn_size if model.is_moe else model.ffn_size
    wide = 2.0 * hidden * 4 / spread  # inputs and outputs of two norms
    attention = 2.0 * (2 * model.attention_size + 2 * model.kv_size) / shape.tp
    feed_forward = 2.0 * (3 if model.gated else 2) * ffn / (1 if model.is_moe else shape.tp)
    dispatched = 4.0 * model.experts_per_token * hidden / spread if model.is_moe else 0.0
    if model.is_moe:
        feed_forward /= spread
    every = wide + attention + feed_forward + dispatched
    return every, (2.0 * hidden / spread if shape.recompute else every)


def _with_workspace(memory: TrainMemory, workspace_bytes: float) -> TrainMemory:
    return TrainMemory(
        weights_bytes=memory.weights_bytes,
        gradients_bytes=memory.gradients_bytes,
        optimizer_bytes=memory.optimizer_bytes,
        activations_bytes=memory.activations_bytes,
        logits_bytes=memory.logits_bytes,
        workspace_bytes=workspace_bytes,
    )
