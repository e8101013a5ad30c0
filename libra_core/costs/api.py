"""What `planning/` may use of the cost evaluator. All times in seconds, all memory in bytes, all lengths in tokens.

Pure and free of heavy imports (numpy and yaml only). Every evaluator is built once per (device, model) and then answers in
microseconds, so that a planner may call it for every candidate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]
IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]
Grounding = Literal["measured", "derived", "datasheet"]


# ---------------------------------------------------------------------------------------------------- facts (facts.py)
@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    grounding: Grounding
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Alpha-beta model of a link as one GPU sees it, one direction."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    name: str
    kind: Literal["gpu", "cpu"]
    gpus_per_node: int
    memory_bytes: float
    peak_flops: float
    """Dense BF16."""
    memory_bytes_per_s: float
    intra: Link
    inter: Link
    provenance: Mapping[str, Provenance]
    # ... fitted kernel curves follow

    @property
    def grounding(self) -> Grounding:
        """The weakest grounding among its numbers."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    tied_embeddings: bool
    num_experts: int = 0
    """0: dense."""
    experts_per_token: int = 0
    expert_ffn_size: int = 0
    weight_bytes_per_parameter: float = 2.0
    kv_bytes_per_value: float = 2.0
    max_positions: int = 40960

    @property
    def num_parameters(self) -> int: ...  # type: ignore[empty-body]
    @property
    def active_parameters(self) -> int: ...  # type: ignore[empty-body]
    @property
    def kv_bytes_per_token(self) -> float: ...  # type: ignore[empty-body]


def load_device(name_or_path: str | Path) -> DeviceProfile:
    """`a100_sxm_80`, `a800_sxm_80`, `h100_sxm_80`, `h200_sxm`, `cpu_host`, or the path of a profile YAML; raises `ConfigError`."""
    raise NotImplementedError


def load_model(name_or_path: str | Path) -> ModelFacts:
    """`qwen3_4b`, `qwen3_14b`, `qwen3_30b_a3b`, `qwen2.5_3b`, `qwen2.5_7b`, `llama3_8b`, `llama3_70b` (also `Qwen3-14B` style), a YAML,
    an HF folder or a `config.json`; raises `ConfigError`."""
    raise NotImplementedError


# ------------------------------------------------------------------------------------------------- rollout (rollout.py)
@dataclass(frozen=True, slots=True, kw_only=True)
class StepCoefficients:
    """One engine: decode step_s = a + b·batch + c·context_tokens; prefill of n tokens on a context of k: a + b·n + c·n·(k + n/2)."""

    a_s: float
    b_s: float
    c_s: float
    prefill_a_s: float
    prefill_b_s_per_token: float
    prefill_c_s_per_token2: float

    def step_s(self, batch: float, context_tokens: float) -> float: ...  # type: ignore[empty-body]
    def prefill_s(self, new_tokens: float, context_tokens: float = 0.0) -> float: ...  # type: ignore[empty-body]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether something fits; `reason` is empty when it does, otherwise a sentence that names value and bound."""

    fits: bool
    reason: str = ""


class RolloutCosts:
    """Engines of one model on one device."""

    def __init__(self, device: DeviceProfile, model: ModelFacts, *, utilization: float = 0.9) -> None: ...

    def coefficients(self, tp: int) -> StepCoefficients:
        """Cached; raises `ConfigError` when the engine does not fit."""
        raise NotImplementedError

    def kv_tokens(self, tp: int, utilization: float | None = None) -> int:
        """Tokens of KV cache of the whole engine; 0 when the weights leave no room."""
        raise NotImplementedError

    def fits(self, tp: int) -> Fit: ...  # type: ignore[empty-body]

    def degrees(self) -> tuple[int, ...]:
        """Every degree 1, 2, 4, ... up to the node that fits, ascending."""
        raise NotImplementedError

    def reprefill_s(self, tp: int, context_tokens: float) -> float:
        """Price of moving a trajectory of that context to an engine of degree `tp`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What caps the concurrency of one engine."""

    kv_tokens: float
    """Tokens that may be promised: capacity times `rollout.kv_fill`."""
    max_num_seqs: int


class RequestTable:
    """Requests sorted by generated length with prefix sums: any interval [first, last] in O(1). (intervals.py)"""

    def __init__(
        self,
        prompt_tokens: Sequence[float] | FloatArray,
        generated_tokens: Sequence[float] | FloatArray,
        tool_tokens: Sequence[float] | FloatArray | None = None,
        tool_s: Sequence[float] | FloatArray | None = None,
        turns: Sequence[float] | FloatArray | None = None,
    ) -> None:
        """Arrays `[n]` in any order, one entry a trajectory; sorted here (stable, by generated tokens). `turns` defaults to 1."""

    generated_tokens: FloatArray
    """`[n]`, ascending."""
    order: IntArray
    """`[n]`: position in the input of the i-th sorted request."""

    def __len__(self) -> int: ...  # type: ignore[empty-body]

    def makespan_s(self, first: int, last: int, coefficients: StepCoefficients, limits: EngineLimits) -> float:
        """Seconds for requests first..last (inclusive, sorted order) started together on one engine; infinite when a single one of
        them exceeds the KV cache. Monotone: never falls when `last` grows or `first` shrinks. O(1)."""
        raise NotImplementedError

    def makespans_s(self, first: IntArray, last: IntArray, coefficients: StepCoefficients, limits: EngineLimits) -> FloatArray:
        """The same for arrays of intervals `[m]`; equal to the scalar form."""
        raise NotImplementedError


# --------------------------------------------------------------------------------------------- training (training.py)
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingShape:
    """Parallelism of a training world; tp·cp·pp·dp GPUs, ep divides dp·cp·tp."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch_tokens: int = 4096
    recompute: bool = True
    distributed_optimizer: bool = True
    sequence_parallel: bool = True
    uneven_stages: bool = False
    """Allow stages of ceil and floor(layers/pp) layers; the time is that of the largest stage."""

    @property
    def num_gpus(self) -> int:
        return self.tp * self.cp * self.pp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoad:
    """One optimizer step's trajectories; `TrainingLoad.of(lengths)`."""

    num_sequences: int
    tokens: float
    squared_tokens: float
    """Σ L_i²."""
    longest_tokens: float

    @classmethod
    def of(cls, lengths: Sequence[float] | FloatArray) -> "TrainingLoad":
        """From total lengths `[n]` (prompt, generated and tool tokens)."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTimeParts:
    forward_backward_s: float
    """Compute of all micro-batches of one stage, recompute included."""
    tp_communication_s: float
    ep_communication_s: float
    bubble_s: float
    pp_transfer_s: float
    dp_exposed_s: float
    optimizer_s: float
    logprob_s: float
    """Forward pass for old log-probs (0 when the sampler's are used)."""


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
    def total_bytes(self) -> float: ...  # type: ignore[empty-body]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEstimate:
    t_train_s: float
    parts: TrainTimeParts
    memory: TrainMemory
    num_micro_batches: int
    """Per pipeline."""
    bubble_share: float
    tp_share: float
    """Share of t_train_s that TP collectives take."""
    fit: Fit
    """Divisibility, topology and memory; an infeasible layout still carries its numbers when they can be computed (inf if not)."""


class TrainingCosts:
    """Training of one model on one device type."""

    def __init__(
        self,
        device: DeviceProfile,
        model: ModelFacts,
        *,
        node_size: int | None = None,
        logprob_pass: bool = False,
        memory_utilization: float = 0.92,
    ) -> None:
        """`node_size` defaults to the device's GPUs per node."""

    def shape_fit(self, shape: TrainingShape) -> Fit:
        """Divisibility and topology alone (cheap; the reason is a sentence)."""
        raise NotImplementedError

    def memory(self, shape: TrainingShape, longest_tokens: float) -> TrainMemory: ...  # type: ignore[empty-body]

    def estimate(self, shape: TrainingShape, load: TrainingLoad) -> TrainEstimate: ...  # type: ignore[empty-body]


def one_forward_one_backward(forward: float, backward: float, num_micro_batches: int, pp: int) -> float:
    """Makespan of the 1F1B schedule with equal stages: (m + pp - 1)·(forward + backward)."""
    return (num_micro_batches + pp - 1) * (forward + backward)


# --------------------------------------------------------------------------------------- moving weights (transitions.py)
@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionParts:
    """Priors, used until the runtime has measured its own."""

    publish_s: float
    engine_start_s: float
    trainer_start_s: float


class TransitionCosts:
    def __init__(self, device: DeviceProfile, model: ModelFacts) -> None: ...

    def publication_s(self, train: TrainingShape, engines: Mapping[int, int]) -> float:
        """New weights from the trainer to `{tp: number of engines}`: gather, cross-node broadcast, load, resume."""
        raise NotImplementedError

    def engine_start_s(self, tp: int) -> float:
        """Process start, weights, memory profiling, graph capture."""
        raise NotImplementedError

    def replica_join_s(self, train: TrainingShape) -> float:
        """A hybrid replica receives weights and optimizer state of its shards and builds its world."""
        raise NotImplementedError

    def kv_move_s(self, context_tokens: float, *, same_node: bool) -> float:
        """KV cache of one trajectory over the link."""
        raise NotImplementedError
