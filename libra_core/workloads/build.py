"""From the configuration to a workload: the one entry point for the agent loop, the scorer and the warm start."""

from dataclasses import dataclass
from pathlib import Path

from libra_core.config.models import LibraConfig
from libra_core.config.workload import SearchR1Config, SyntheticConfig
from libra_core.ports.environment import Environment, PromptSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tools and rewards, and the prompts that need them."""

    environment: Environment
    prompts: PromptSource


def build_workload(config: LibraConfig, model_folder: Path) -> Workload:
    """Assemble the configured workload for the model in `model_folder`; takes up to a second, no torch.

    Raises:
        ModelFolderError: when the folder lacks what the workload reads of it: a usable tokenizer.json, or the vocabulary's size.
    """
    match config.workload:
        case SearchR1Config():
            return _search_r1(config.workload, model_folder, config.seed)
        case SyntheticConfig():
            return _synthetic(config.workload, model_folder, config.seed)


def _search_r1(settings: SearchR1Config, model_folder: Path, seed: int) -> Workload:
    from libra_core.workloads.search_r1.environment import SearchEnvironment
    from libra_core.workloads.search_r1.facts import load_world, split_world
    from libra_core.workloads.search_r1.source import SearchPromptSource
    from libra_core.workloads.text_codec import TextCodec

    codec = TextCodec.from_folder(model_folder)
    world = load_world()
    split = split_world(world, settings.heldout_share)
    return Workload(
        environment=SearchEnvironment(codec, world, top_k=settings.top_k, max_passage_tokens=settings.max_passage_tokens),
        prompts=SearchPromptSource(codec, split, two_hop_share=settings.two_hop_share, seed=seed),
    )


def _synthetic(settings: SyntheticConfig, model_folder: Path, seed: int) -> Workload:
    from libra_core.workloads.synthetic.environment import SyntheticEnvironment
    from libra_core.workloads.synthetic.source import SyntheticPromptSource
    from libra_core.workloads.synthetic.vocabulary import draw_vocabulary, vocabulary_size

    vocabulary = draw_vocabulary(vocabulary_size(model_folder), turn_tokens=settings.turn_tokens, seed=seed)
    return Workload(
        environment=SyntheticEnvironment(settings, vocabulary, seed=seed),
        prompts=SyntheticPromptSource(vocabulary_size=vocabulary.size, prompt_tokens=settings.prompt_tokens, seed=seed),
    )
