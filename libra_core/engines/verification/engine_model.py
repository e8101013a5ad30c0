"""Random Qwen3-shaped folders of any size, for engines: sharp logits, and no collapse onto one token.

A tied head rewards repeating the input token; layers drawn wider than the embedding drown that out.
"""

from dataclasses import dataclass
from pathlib import Path

_LAYER_STD = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModelShape:
    """Tied embeddings, as in the models Libra trains on CPU."""

    hidden_size: int = 128
    ffn_size: int = 384
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    vocab_size: int = 512
    max_positions: int = 512


SMALL = EngineModelShape()
"""0.9M parameters."""


def build_engine_model(folder: Path, *, seed: int, shape: EngineModelShape = SMALL) -> Path:
    """Write config and weights (float32), without a tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.hidden_size // shape.num_heads,
        max_position_embeddings=shape.max_positions,
        initializer_range=_LAYER_STD,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder
