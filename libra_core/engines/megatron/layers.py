"""The two modules that lift the limits of Megatron's local layer spec, and the specs for both worlds.

The stock local spec refuses sequence parallelism (its norm) and packed sequences (its attention). On CUDA with Transformer
Engine installed the stock TE spec is used instead; that path has not been run on this project's machines.
"""

import importlib.util
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


def has_transformer_engine() -> bool:
    return torch.cuda.is_available() and importlib.util.find_spec("transformer_engine") is not None


class RMSNorm(torch.nn.Module):
    """Root mean square norm whose weight tells Megatron to sum its gradient over TP ranks under sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_ignored: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), self.weight, self.eps)


class PackedAttention(MegatronModule):
    """Causal attention over packed sequences `[T, heads, dim]`, one SDPA call per sequence of `cu_seqlens`."""

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_ignored: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *_mask: Any,
        packed_seq_params: PackedSeqParams | None = None,
        **_ignored: Any,
    ) -> Tensor:
        assert packed_seq_params is not None, "every forward pass of Libra is packed"
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        heads_first = tuple(x.flatten(0, -3).transpose(0, 1)[None] for x in (query, key, value))
        outputs = [
            F.scaled_dot_product_attention(
                *(x[:, :, start:end] for x in heads_first), is_causal=True, enable_gqa=True, scale=self.scale
            )
            for start, end in pairwise(bounds)
        ]
        return torch.cat(outputs, dim=2)[0].transpose(0, 1).flatten(1)


def block_spec(config: TransformerConfig) -> ModuleSpec | TransformerBlockSubmodules:
    """Layers of this pipeline stage. A block spec for the local layers, since a layer spec would take the stock final norm."""
    if has_transformer_engine():
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    layer = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=RMSNorm)
