"""Makes the embedded policy for the built-in questions."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer

from libra_core.config.models import LibraConfig
from libra_core.engines.warm_start.demonstrations import Demonstrator
from libra_core.engines.warm_start.evaluation import SuccessMeter
from libra_core.engines.warm_start.imitation import Imitator
from libra_core.engines.warm_start.policy import new_policy, save_policy
from libra_core.engines.warm_start.recipe import Report, WarmStartRecipe
from libra_core.engines.warm_start.result import write_facts
from libra_core.engines.warm_start.tokenizer import train_tokenizer
from libra_core.types.trajectory import Prompt
from libra_core.workloads.search_r1.environment import SearchEnvironment
from libra_core.workloads.search_r1.facts import FactWorld, load_world, split_world
from libra_core.workloads.search_r1.source import SearchPromptSource
from libra_core.workloads.text_codec import TextCodec

_METER_SEED: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Material:
    """What teaching and measuring share."""

    world: FactWorld
    tokenizer: Tokenizer
    codec: TextCodec
    trained: Sequence[Prompt]
    heldout: Sequence[Prompt]


def make_search_policy(config: LibraConfig, folder: Path, report: Report) -> None:
    """Write the HF folder of a policy that has learned to search, with its base success lowered into the window.

    Raises:
        NumericsError: when it cannot be brought there.
    """
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
