"""The model: its folder, the shapes that parallelism and engines need, its tokenizer."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from libra_core.config import LibraConfig
from libra_core.config.workload import SearchR1Config
from libra_core.engines.head_sizes import check_head_size
from libra_core.engines.model_folder import check_divides, check_model_folder
from libra_core.errors import ConfigError
from libra_core.preflight.needs import GIB, model_facts, weight_bytes
from libra_core.workloads.search_r1.tags import SPECIAL_TOKENS
from libra_core.workloads.text_codec import TextCodec

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def folder(config: LibraConfig) -> str:
    """Files and shards, a family that can be trained, degrees that divide it, positions for the context."""
    layout, degrees = config.training.layout, tuple(group.tp for group in config.rollout.engines)
    if config.model.path is None:
        facts, what = model_facts(config), "the embedded policy"
        if facts.hidden_size % facts.num_heads:
            raise ConfigError(
                f"model.tiny.num_heads = {facts.num_heads} does not divide hidden_size = {facts.hidden_size}; change one"
            )
        check_divides(facts, layout=layout, engine_degrees=degrees)
    else:
        facts, what = check_model_folder(config.model.path, layout=layout, engine_degrees=degrees), config.model.path
    if config.rollout.max_context_tokens >= facts.max_positions:  # the engine scores a full context by one token more
        raise ConfigError(
            f"rollout.max_context_tokens ({config.rollout.max_context_tokens}) must be below the {facts.max_positions} positions "
            f"of {what}; lower it"
        )
    return f"{what}: {facts.model_type}, {weight_bytes(config, facts) / GIB:.2g} GiB in {config.model.dtype}"


def head_size(config: LibraConfig) -> str:
    head_dim = model_facts(config).head_dim
    if config.backend.kind == "cpu":
        check_head_size(head_dim)
    return f"{head_dim}, which the engines know"


def tokenizer(config: LibraConfig) -> str:
    """It loads, its tokens have rows in the model's embedding, and the built-in questions find their tags in it."""
    with tokenizer_folder(config) as place:
        if place is None:
            return "made with the policy, from what it is taught"
        codec = TextCodec.from_folder(place)
        size, rows = codec.size, model_facts(config).vocab_size
        if size > rows:
            raise ConfigError(
                f"the tokenizer of {place} has {size} tokens, and the model's embedding {rows} rows; resize the embedding"
            )
        if isinstance(config.workload, SearchR1Config) and not config.workload.train_files:
            for tag in SPECIAL_TOKENS[1:]:
                codec.token(tag)
        return f"{size} tokens"


@contextmanager
def tokenizer_folder(config: LibraConfig) -> Generator[Path | None]:
    """A folder that holds the run's tokenizer and configuration; None where only a long warm start makes them."""
    if config.model.path is not None:
        yield Path(config.model.path)
        return
    if config.model.warm_start.tool_steps and config.workload.kind != "search_r1":
        yield None
        return
    from libra_core.engines.warm_start.tokenizer import save_tokenizer

    with TemporaryDirectory() as made:
        place = Path(made)
        save_tokenizer(_embedded(config.model.tiny.vocab_size), place, config.model.tiny.max_positions)
        (place / "config.json").write_text(f'{{"vocab_size": {config.model.tiny.vocab_size}}}', encoding="utf-8")
        yield place


@cache
def _embedded(vocab_size: int) -> "Tokenizer":
    """Trained once for the two looks that need it; nobody changes it."""
    from libra_core.engines.warm_start.tokenizer import train_tokenizer
    from libra_core.workloads.search_r1.facts import load_world

    return train_tokenizer(load_world(), vocab_size)
