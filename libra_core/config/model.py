"""The policy: an HF folder, or the embedded tiny policy that `libra warm-start` makes."""

from typing import Literal

from pydantic import Field

from libra_core.config.base import Section, Seed
from libra_core.config.paths import InputPath


class TinyPolicyConfig(Section):
    """Shape of the embedded policy (Qwen3, tied embeddings, about 1M parameters)."""

    hidden_size: int = Field(default=128, ge=32)
    num_layers: int = Field(default=4, ge=1)
    num_heads: int = Field(default=4, ge=1)
    num_kv_heads: int = Field(default=2, ge=1)
    ffn_size: int = Field(default=384, ge=32)
    vocab_size: int = Field(default=1024, ge=512)
    max_positions: int = Field(default=512, ge=128)


class WarmStartConfig(Section):
    """Supervised start of the tiny policy: learn the skill on invented worlds, then lower its base rate."""

    seed: Seed = 0
    clean_steps: int = Field(default=900, ge=1)
    """Steps on correct demonstrations."""
    mixed_steps: int = Field(default=40, ge=0)
    """Steps on demonstrations of mixed quality, which set the base success rate."""
    tool_steps: int = Field(default=0, ge=0)
    """Steps of imitating the scripted agent of `r2e_gym` or `dapo_math`; 0 starts those from random weights."""
    batch_size: int = Field(default=16, ge=1)
    learning_rate: float = Field(default=1e-2, gt=0)
    """Peak of Adam's, for embeddings and norms."""
    matrix_learning_rate: float = Field(default=3e-2, gt=0)
    """Peak of Muon's, for the matrices."""
    coined_share: float = Field(default=0.1, ge=0, le=1)
    """Share of names in the demonstrations that no atlas holds."""
    good_share: float = Field(default=0.45, ge=0, le=1)
    """Share of correct demonstrations in the mixed steps."""
    guess_share: float = Field(default=0.9, ge=0, le=1)
    """Of the incorrect ones, the share that answer without searching."""
    base_success_low: float = Field(default=0.05, ge=0, le=1)
    base_success_high: float = Field(default=0.35, ge=0, le=1)
    measured_prompts: int = Field(default=192, ge=1)
    """Questions per measurement of success, on trained and on held-out countries each."""
    threads: int = Field(default=1, ge=1)
    """OMP threads; a second one gains little on matrices this small."""


class ModelConfig(Section):
    """Which model is trained."""

    path: InputPath | None = None
    """HF folder (config.json, safetensors, tokenizer). Unset: the embedded tiny policy, warm-started and cached."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    tiny: TinyPolicyConfig = TinyPolicyConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
