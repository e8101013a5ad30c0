"""Small random HF models with sharp logits, and batches of unequal length: what numerical checks run on.

Flat logits hide errors: the embedding of a tiny model is drawn so wide that its distributions are peaked.
"""

from pathlib import Path
from random import Random
from typing import Literal

from libra_core.types.batch import TrainingBatch, TrainingSequence
from libra_core.types.ids import BatchId, PolicyVersion

Family = Literal["qwen3", "qwen2", "llama"]
VOCAB_SIZE = 512
_SHARPNESS = 3.0
"""Factor on the usual initialisation of the layers."""
_HEAD_SHARPNESS = 6.0
"""And on embedding and head (standard deviation 0.12): log-probs of random tokens scatter from -2 to -15."""


def build_model_folder(folder: Path, *, family: Family = "qwen3", tied: bool = True, seed: int = 7) -> Path:
    """Write a complete HF folder: 4 layers, hidden 128, 4 heads on 2 key-value heads, vocabulary 512."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    shape = {"head_dim": {"qwen3": 48, "llama": 32}[family]} if family != "qwen2" else {}
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        **shape,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(_HEAD_SHARPNESS if "embed" in name or "lm_head" in name else _SHARPNESS)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def training_batch(*, step: int, num_sequences: int = 8, seed: int = 3) -> TrainingBatch:
    """Sequences of 12 to 47 tokens with random masks, so that every rank has another number of loss tokens."""
    random = Random(f"{seed}-{step}")
    return TrainingBatch(
        batch_id=BatchId(f"step-{step:06d}"),
        expected_version=PolicyVersion(step),
        sequences=tuple(_sequence(random, index) for index in range(num_sequences)),
    )


def without_signal(batch: TrainingBatch) -> TrainingBatch:
    """The same sequences, every advantage zero."""
    from dataclasses import replace

    return replace(batch, sequences=tuple(replace(sequence, advantage=0.0) for sequence in batch.sequences))


def _sequence(random: Random, index: int) -> TrainingSequence:
    length = random.randint(12, 47)
    mask = tuple(int(position >= 4 and random.random() > 0.4) for position in range(length))
    return TrainingSequence(
        token_ids=tuple(random.randrange(VOCAB_SIZE) for _ in range(length)),
        loss_mask=mask,
        logprobs=tuple(random.gauss(-9.0, 2.0) if trained else 0.0 for trained in mask),
        advantage=random.gauss(0.0, 1.0),
        group_index=index // 4,
    )


def _write_tokenizer(folder: Path) -> None:
    """One word per token id; only its presence and size matter."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {f"t{index}": index for index in range(VOCAB_SIZE)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="t0"))).save_pretrained(folder)
