"""Roles of tokens by their ids alone: which end a turn, which are worth a reward. Knows no text and no tokenizer."""

import random
from dataclasses import dataclass
from pathlib import Path

from libra_core.borders import count_of
from libra_core.errors import ConfigError, ModelFolderError
from libra_core.files import parse_json, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticVocabulary:
    size: int
    stops: frozenset[int]
    """End a turn."""
    rewarded: frozenset[int]
    """Half of the tokens, drawn without regard to `stops`, so that learning them does not change lengths."""


def draw_vocabulary(size: int, *, turn_tokens: float, seed: int) -> SyntheticVocabulary:
    """Seeded subsets of ids `0..size-1`; under a uniform policy turns have a mean of `turn_tokens` tokens."""
    generator = random.Random(f"synthetic/{seed}")
    num_stops = min(size, max(1, round(size / turn_tokens)))
    return SyntheticVocabulary(
        size=size,
        stops=frozenset(generator.sample(range(size), num_stops)),
        rewarded=frozenset(generator.sample(range(size), size // 2)),
    )


def known_vocabulary(model_folder: Path) -> int | None:
    """The same; None where there is no config.json."""
    return vocabulary_size(model_folder) if (model_folder / "config.json").is_file() else None


def vocabulary_size(model_folder: Path) -> int:
    """Rows of the model's embedding; raises `ModelFolderError` when config.json does not say."""
    file = model_folder / "config.json"
    try:
        return count_of(parse_json(read_text(file, "model configuration"), str(file))["vocab_size"], "vocab_size")
    except (ConfigError, KeyError, TypeError) as error:
        raise ModelFolderError(f"{file} names no vocab_size ({error}); point model.path at an HF model folder") from None
