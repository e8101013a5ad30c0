"""Tokenizers for tests: one that splits every tag, as a general-purpose one does."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from libra_core.workloads.text_codec import TextCodec


def general_codec(*special: str) -> TextCodec:
    """Byte-level, with merges of its own, so that a text has several encodings; `special` tokens beside ChatML's two."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("s", "e"), ("<", "/"), ("a", "r"), ("se", "ar"), (">", "."), ("c", "h")]
    vocabulary = {symbol: number for number, symbol in enumerate([*alphabet, *(left + right for left, right in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", *special])
    return TextCodec(tokenizer)
