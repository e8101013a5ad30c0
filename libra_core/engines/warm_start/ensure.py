"""The embedded policy, from the cache or made now."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer

from libra_core.config.models import LibraConfig
from libra_core.engines.warm_start.cache import cache_folder, exclusive, made_whole
from libra_core.engines.warm_start.demonstrations import Demonstrator
from libra_core.engines.warm_start.evaluation import SuccessMeter
from libra_core.engines.warm_start.imitation import Imitator
from libra_core.engines.warm_start.policy import new_policy, save_policy
from libra_core.engines.warm_start.recipe import Report, WarmStartRecipe
from libra_core.engines.warm_start.result import WarmStartResult, is_whole, read_result, write_facts
from libra_core.engines.warm_start.tokenizer import train_tokenizer
from libra_core.engines.warm_start.tools import make_tool_policy
from libra_core.errors import ConfigError
from libra_core.types.trajectory import Prompt
from libra_core.workloads.search_r1.environment import SearchEnvironment
from libra_core.workloads.search_r1.facts import World, load_world, split_world
from libra_core.workloads.search_r1.source import SearchPromptSource
from libra_core.workloads.text_codec import TextCodec

_METER_SEED: Final = 2


def ensure_policy(config: LibraConfig, report: Report) -> WarmStartResult:
    """Return the warm-started policy of this configuration, making it if the cache has none (minutes on two cores).

    Waits while another process makes the same policy. Only for `model.path` unset.

    Raises:
        ConfigError: when the workload has nothing to teach, or is not asked to.
        NumericsError: when the base success cannot be brought into its window; nothing is cached then.
        DeadlineError: when another process holds the cache for too long.
    """
    searches, tool_steps = config.workload.kind == "search_r1", config.model.warm_start.tool_steps
    if searches and tool_steps:
        raise ConfigError(
            f"model.warm_start.tool_steps = {tool_steps} is not for search_r1, which clean_steps teach; leave it out"
        )
    if not searches and not tool_steps:
        raise ConfigError(
            f"workload.kind = {config.workload.kind} starts from random weights unless model.warm_start.tool_steps is above 0"
        )
    started_s = time.monotonic()
    folder = cache_folder(config)
    if not is_whole(folder):
        with exclusive(folder):
            if not is_whole(folder):
                with made_whole(folder) as scratch:
                    (_make_policy if searches else make_tool_policy)(config, scratch, report)
                return read_result(folder, cached=False, seconds=time.monotonic() - started_s)
    report("the warm-started policy is cached", 1.0)
    return read_result(folder, cached=True, seconds=time.monotonic() - started_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Material:
    """What teaching and measuring share."""

    world: World
    tokenizer: Tokenizer
    codec: TextCodec
    trained: Sequence[Prompt]
    heldout: Sequence[Prompt]


def _make_policy(config: LibraConfig, folder: Path, report: Report) -> None:
    torch.set_num_threads(config.model.warm_start.threads)
    report("training the tokenizer", 0.0)
    material = _material(config)
    settings = config.model.warm_start
    policy = new_policy(config.model.tiny, material.tokenizer, settings.seed)
    meter = SuccessMeter(policy, _environment(config, material), _METER_SEED)
    demonstrator = Demonstrator(
        material.codec,
        names=material.world,
        shown=split_world(material.world, config.workload.heldout_share).training,
        coined_share=settings.coined_share,
        two_hop_share=config.workload.two_hop_share,
    )
    recipe = WarmStartRecipe(settings, demonstrator, Imitator(policy, settings), report)
    recipe.teach_skill()
    skill = meter.success(material.trained)
    base = recipe.lower_base_rate(lambda: meter.success(material.trained))
    heldout = meter.success(material.heldout) if material.heldout else None
    save_policy(policy, material.tokenizer, folder)
    write_facts(folder, skill_success=skill, base_success=base, heldout_success=heldout)
    report(f"warm start done, base success {base:.2f}", 1.0)


def _material(config: LibraConfig) -> _Material:
    world = load_world()
    tokenizer = train_tokenizer(world, config.model.tiny.vocab_size)
    codec = TextCodec(tokenizer)
    settings = config.model.warm_start
    source = SearchPromptSource(
        codec,
        split_world(world, config.workload.heldout_share),
        two_hop_share=config.workload.two_hop_share,
        seed=settings.seed,
    )
    return _Material(
        world=world,
        tokenizer=tokenizer,
        codec=codec,
        trained=tuple(itertools.islice(source.training(0), settings.measured_prompts)),
        heldout=source.heldout(settings.measured_prompts),
    )


def _environment(config: LibraConfig, material: _Material) -> SearchEnvironment:
    return SearchEnvironment(
        material.codec, material.world, top_k=config.workload.top_k, max_passage_tokens=config.workload.max_passage_tokens
    )
