"""One table: which HF tensors make which Megatron parameter, and how tensor parallelism cuts it. No torch.

Its order is *the* order of export files, broadcasts and digests, so that both ends of a transfer know it beforehand.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from libra_core.engines.model_folder import DecoderShape

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


class Cut(StrEnum):
    """How a parameter is divided over tensor-parallel ranks."""

    WHOLE = "whole"
    ROWS = "rows"
    COLUMNS = "columns"
    GATE_UP = "gate_up"
    """Gate and up projections are cut each, then stacked."""
    QKV = "qkv"
    """Stored by key-value group: the group's query heads, its key, its value; cut by group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameter:
    """One Megatron parameter of a layer."""

    name: str
    """Below `decoder.layers.<i>.` in the local spec."""
    fused_name: str
    """In the Transformer Engine spec, which fuses norms into the next linear layer."""
    cut: Cut
    hf_names: tuple[str, ...]


def layer_parameters(facts: DecoderShape, layer: int) -> tuple[LayerParameter, ...]:
    """Parameters of HF layer `layer`, in export order."""
    attention = f"model.layers.{layer}.self_attn"
    mlp = f"model.layers.{layer}.mlp"
    rows = [
        _norm("input_layernorm", "self_attention.linear_qkv.layer_norm_weight", f"model.layers.{layer}.input_layernorm.weight"),
        _same("self_attention.linear_qkv.weight", Cut.QKV, *(f"{attention}.{x}_proj.weight" for x in "qkv")),
    ]
    if facts.qkv_bias:
        rows.append(_same("self_attention.linear_qkv.bias", Cut.QKV, *(f"{attention}.{x}_proj.bias" for x in "qkv")))
    if facts.qk_norm:
        rows += [_same(f"self_attention.{x}_layernorm.weight", Cut.WHOLE, f"{attention}.{x}_norm.weight") for x in "qk"]
    rows += [
        _same("self_attention.linear_proj.weight", Cut.COLUMNS, f"{attention}.o_proj.weight"),
        _norm("pre_mlp_layernorm", "mlp.linear_fc1.layer_norm_weight", f"model.layers.{layer}.post_attention_layernorm.weight"),
        _same("mlp.linear_fc1.weight", Cut.GATE_UP, f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
        _same("mlp.linear_fc2.weight", Cut.COLUMNS, f"{mlp}.down_proj.weight"),
    ]
    return tuple(rows)


def hf_tensors(facts: DecoderShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and full shape of every exported tensor, in export order; a tied head is not among them."""
    yield EMBEDDING, (facts.vocab_size, facts.hidden_size)
    for layer in range(facts.num_layers):
        for parameter in layer_parameters(facts, layer):
            for name in parameter.hf_names:
                yield name, _shape(facts, name)
    yield FINAL_NORM, (facts.hidden_size,)
    if not facts.tied_embeddings:
        yield HEAD, (facts.vocab_size, facts.hidden_size)


def _shape(facts: DecoderShape, name: str) -> tuple[int, ...]:
    module, _, kind = name.rpartition(".")
    width = {
        "q_proj": facts.num_heads * facts.head_dim,
        "k_proj": facts.num_kv_heads * facts.head_dim,
        "v_proj": facts.num_kv_heads * facts.head_dim,
        "gate_proj": facts.ffn_size,
        "up_proj": facts.ffn_size,
        "q_norm": facts.head_dim,
        "k_norm": facts.head_dim,
    }.get(module.rpartition(".")[2], facts.hidden_size)
    if kind == "bias" or "norm" in module.rpartition(".")[2]:
        return (width,)
    inner = {"o_proj": facts.num_heads * facts.head_dim, "down_proj": facts.ffn_size}
    return width, inner.get(module.rpartition(".")[2], facts.hidden_size)


def _same(name: str, cut: Cut, *hf_names: str) -> LayerParameter:
    return LayerParameter(name=name, fused_name=name, cut=cut, hf_names=hf_names)


def _norm(name: str, fused_name: str, hf_name: str) -> LayerParameter:
    return LayerParameter(name=f"{name}.weight", fused_name=fused_name, cut=Cut.WHOLE, hf_names=(hf_name,))
