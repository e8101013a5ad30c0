"""The tiny Qwen3-shaped policy and its HF folder."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from libra_core.config.model import TinyPolicyConfig
from libra_core.engines.warm_start.tokenizer import save_tokenizer
from libra_core.workloads.search_r1 import tags


def new_policy(shape: TinyPolicyConfig, tokenizer: Tokenizer, seed: int) -> Qwen3ForCausalLM:
    """Fresh weights in float32; the same for the same seed and library versions."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(_hf_config(shape, tokenizer))


def save_policy(policy: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a complete HF folder: config, weights, tokenizer, generation settings."""
    policy.generation_config = GenerationConfig(
        eos_token_id=tokenizer.token_to_id(tags.MESSAGE_END),
        pad_token_id=tokenizer.token_to_id(tags.PAD),
        do_sample=True,
        temperature=1.0,
    )
    logging.disable_progress_bar()  # transformers draws one on stderr for a single small shard
    policy.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, policy.config.max_position_embeddings)


def _hf_config(shape: TinyPolicyConfig, tokenizer: Tokenizer) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.hidden_size // shape.num_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        rope_theta=10_000.0,
        attn_implementation="sdpa",
        dtype="float32",
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(tags.MESSAGE_END),
        pad_token_id=tokenizer.token_to_id(tags.PAD),
    )
