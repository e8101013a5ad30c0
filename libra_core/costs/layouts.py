"""Parallelism of a training world, the trajectories it trains on, and which layouts are possible at all."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from libra_core.costs.curves import Array
from libra_core.costs.facts import Fit, ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingShape:
    """Megatron-Core parallelism; tp·cp·pp·dp GPUs. `ep` divides tp·cp·dp, experts are whole on their rank."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch_tokens: int = 4096
    """Token budget of one packed micro-batch; a longer sequence travels alone."""
    recompute: bool = True
    distributed_optimizer: bool = True
    sequence_parallel: bool = True
    uneven_stages: bool = False
    """Allow stages of ceil and floor(layers/pp) layers; the time is that of the largest stage."""

    @property
    def num_gpus(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def stage_gpus(self) -> int:
        """Consecutive ranks of one pipeline stage (Megatron's order tp-cp-ep-dp-pp)."""
        return self.tp * self.cp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoad:
    """One optimizer step's trajectories, in the sums that the cost depends on."""

    num_sequences: int
    tokens: float
    squared_tokens: float
    """Σ L_i²: attention grows with it, not with the mean length."""
    longest_tokens: float

    @classmethod
    def of(cls, lengths: Sequence[float] | Array) -> "TrainingLoad":
        """From total lengths `[n]` (prompt, generated and tool tokens)."""
        values = np.asarray(lengths, np.float64)
        return cls(
            num_sequences=len(values),
            tokens=float(values.sum()),
            squared_tokens=float((values**2).sum()),
            longest_tokens=float(values.max()),
        )

    @property
    def weighted_length(self) -> float:
        """Mean length of the sequence that a token belongs to, ΣL²/ΣL."""
        return self.squared_tokens / self.tokens


def stage_layers(model: ModelFacts, pp: int) -> int:
    """Layers of the largest stage; none is ever dropped."""
    return -(-model.num_layers // pp)


def shape_fit(model: ModelFacts, shape: TrainingShape, node_size: int) -> Fit:
    """Divisibility and topology, in one sentence when they fail."""
    if shape.tp > node_size or node_size % shape.tp:
        return Fit(fits=False, reason=f"a tp group of {shape.tp} does not fit evenly into a node of {node_size} GPUs")
    for what, size in (
        ("attention heads", model.num_heads),
        ("key-value heads", model.num_kv_heads),
        ("feed-forward units", model.expert_ffn_size if model.is_moe else model.ffn_size),
        ("vocabulary entries", model.vocab_size),
    ):
        if size % shape.tp:
            return Fit(fits=False, reason=f"tp {shape.tp} does not divide the {size} {what} of {model.name}")
    if shape.pp > model.num_layers:
        return Fit(fits=False, reason=f"pp {shape.pp} is more than the {model.num_layers} layers of {model.name}")
    if model.num_layers % shape.pp and not shape.uneven_stages:
        reason = f"pp {shape.pp} does not divide the {model.num_layers} layers of {model.name}; uneven stages are off"
        return Fit(fits=False, reason=reason)
    if shape.ep > 1 and (not model.is_moe or model.num_experts % shape.ep):
        return Fit(fits=False, reason=f"ep {shape.ep} does not divide the {model.num_experts} experts of {model.name}")
    if shape.stage_gpus % shape.ep:
        return Fit(fits=False, reason=f"ep {shape.ep} does not divide the {shape.stage_gpus} ranks of a stage")
    return Fit(fits=True)
