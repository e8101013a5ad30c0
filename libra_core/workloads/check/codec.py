"""A tokenizer that any text passes through unharmed: one token per byte, and the tags and markers as special tokens."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from libra_core.workloads.search_r1 import tags
from libra_core.workloads.text_codec import TextCodec


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.add_special_tokens(list(tags.SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_codec() -> TextCodec:
    return TextCodec(byte_tokenizer())


def write_byte_model(folder: Path) -> None:
    """A model folder without a model: what a workload reads of one."""
    tokenizer = byte_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": tokenizer.get_vocab_size()}), encoding="utf-8")
