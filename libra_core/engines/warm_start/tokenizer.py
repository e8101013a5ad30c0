"""Byte-level BPE trained on the corpus, with every tag as one special token."""

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from libra_core.errors import ConfigError
from libra_core.workloads.search_r1 import tags
from libra_core.workloads.search_r1.facts import FactWorld, load_world
from libra_core.workloads.search_r1.passages import corpus
from libra_core.workloads.search_r1.questions import one_hop, two_hop


def train_tokenizer(world: FactWorld, vocab_size: int) -> Tokenizer:
    """Merges come from the passages and questions of `world`, so names outside it fall into smaller pieces.

    Raises:
        ConfigError: when the corpus yields fewer than `vocab_size` tokens.
    """
    return _trained(_texts(world), pre_tokenizers.ByteLevel(add_prefix_space=False), vocab_size)


def train_tool_tokenizer(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Merges come from `texts` first. Every digit is a token, so that a number is copied as it is read wherever it stands."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return _trained(itertools.chain(texts, _texts(load_world())), words, vocab_size)


def _trained(texts: Iterable[str], words: pre_tokenizers.PreTokenizer, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(tags.SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ConfigError(
            f"model.tiny.vocab_size = {vocab_size}, but the corpus yields only {tokenizer.get_vocab_size()} tokens; lower it"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Write the files that `AutoTokenizer` and vLLM read."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        "pad_token": tags.PAD,
        "eos_token": tags.MESSAGE_END,
        "chat_template": tags.CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _texts(world: FactWorld) -> Iterable[str]:
    for passage in corpus(world):
        yield f" {passage.text}"
    for country in world.countries:
        for question in (*one_hop(country), *two_hop(country)):
            yield tags.prompt_text(question.text)
