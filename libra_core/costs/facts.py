"""Facts the evaluators compute with: one device, one model. Values only; `profiles.py` reads them from YAML or a config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from libra_core.costs.curves import KernelCurve

Grounding = Literal["measured", "derived", "datasheet"]
_WEAKEST_FIRST: tuple[Grounding, ...] = ("datasheet", "derived", "measured")
_OF_EXPERTS = ("moe", "all_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a number comes from."""

    grounding: Grounding
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """Alpha-beta model of a link as one GPU sees it, one direction."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One kind of device in a node, with the curves its kernels were measured to follow."""

    name: str
    kind: Literal["gpu", "cpu"]
    software: str
    """Versions the curves were measured with."""
    gpus_per_node: int
    memory_bytes: float
    peak_flops: float
    """Dense BF16."""
    memory_bytes_per_s: float
    intra: LinkModel
    inter: LinkModel
    loading_bytes_per_s: float
    """Weights from local storage or shared memory into one GPU."""
    elementwise_launch_s: float
    """Least time of one small kernel (norm, rope, activation) inside a CUDA graph."""
    host_s: float
    """Per engine step: scheduling, sampling, detokenisation that do not overlap with the GPU."""
    host_s_per_sequence: float
    engine_workspace_bytes: float
    """Per GPU of an engine: CUDA context, graphs, activations of the largest prefill chunk, NCCL buffers."""
    training_workspace_bytes: float
    """Per GPU of a trainer: CUDA context, NCCL buffers, fragmentation."""
    training_efficiency: float
    """Measured training FLOP/s over what the layer's kernels alone would reach."""
    engine_boot_s: float
    """Start of an engine without reading its weights: imports, memory profiling, graph capture."""
    curves: Mapping[str, KernelCurve]
    """`gemm_bf16`, `gemm_fp8`, `decode_attention`, `prefill_attention`, `all_reduce_graph`, `all_reduce`, `all_gather`,
    `reduce_scatter`, `all_to_all`, `moe`."""
    provenance: Mapping[str, Provenance]
    """By field or curve name."""

    @property
    def grounding(self) -> Grounding:
        """The weakest grounding among the curves of dense models: `measured` only when every one of them is."""
        present = {self.provenance[name].grounding for name in self.curves if name not in _OF_EXPERTS}
        for level in _WEAKEST_FIRST:
            if level in present:
                return level
        return "datasheet"


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Shape of a decoder with gated feed-forward, dense or mixture of experts."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    tied_embeddings: bool
    qk_norm: bool = False
    gated: bool = True
    """Feed-forward of three matrices (SwiGLU) rather than two."""
    num_experts: int = 0
    """0: dense."""
    experts_per_token: int = 0
    expert_ffn_size: int = 0
    weight_dtype: Literal["bf16", "fp8"] = "bf16"
    """Of the matrices in the engine; embeddings, head and norms stay BF16."""
    kv_bytes_per_value: float = 2.0
    max_positions: int = 40960
    source: str = ""

    @property
    def attention_size(self) -> int:
        """Width of the queries, `num_heads · head_dim`; not always `hidden_size`."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @cached_property
    def attention_parameters(self) -> int:
        """Of one layer."""
        return self.hidden_size * (2 * self.attention_size + 2 * self.kv_size)

    @cached_property
    def expert_parameters(self) -> int:
        """Of one expert (or of the dense feed-forward) in one layer."""
        return (3 if self.gated else 2) * self.hidden_size * (self.expert_ffn_size if self.is_moe else self.ffn_size)

    @cached_property
    def layer_parameters(self) -> int:
        router = self.num_experts * self.hidden_size
        return self.attention_parameters + router + max(1, self.num_experts) * self.expert_parameters + 2 * self.hidden_size

    @cached_property
    def layer_active_parameters(self) -> int:
        """That one token passes through."""
        router = self.num_experts * self.hidden_size
        return self.attention_parameters + router + max(1, self.experts_per_token) * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Input embedding and, unless tied, the output head."""
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    @cached_property
    def num_parameters(self) -> int:
        return self.num_layers * self.layer_parameters + self.embedding_parameters + self.hidden_size

    @cached_property
    def active_parameters(self) -> int:
        """Matrix entries one token is multiplied with, output head included, input embedding not."""
        return self.num_layers * self.layer_active_parameters + self.vocab_size * self.hidden_size

    @property
    def matrix_bytes_per_parameter(self) -> float:
        return 1.0 if self.weight_dtype == "fp8" else 2.0

    @cached_property
    def weight_bytes(self) -> float:
        """Of the whole model in an engine."""
        return self.num_layers * self.layer_parameters * self.matrix_bytes_per_parameter + 2.0 * self.embedding_parameters

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of all layers."""
        return 2.0 * self.num_layers * self.kv_size * self.kv_bytes_per_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether something fits; `reason` is empty when it does, otherwise a sentence that names value and bound."""

    fits: bool
    reason: str = ""
