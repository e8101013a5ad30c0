"""From the configuration to a workload: the one entry point for the agent loop, the scorer and the warm start."""

from dataclasses import dataclass
from pathlib import Path

from libra_core.config.models import LibraConfig
from libra_core.ports.environment import Environment, PromptSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tools and rewards, and the prompts that need them."""

    environment: Environment
    prompts: PromptSource


def build_workload(config: LibraConfig, model_folder: Path) -> Workload:
    """Load the tokenizer of `model_folder` and assemble the configured workload; takes about a second, no torch.

    Raises:
        ModelFolderError: when the folder has no usable tokenizer.json.
    """
    from libra_core.workloads.search_r1.environment import SearchEnvironment
    from libra_core.workloads.search_r1.facts import load_world, split_world
    from libra_core.workloads.search_r1.source import SearchPromptSource
    from libra_core.workloads.text_codec import TextCodec

    settings = config.workload
    codec = TextCodec.from_folder(model_folder)
    world = load_world()
    split = split_world(world, settings.heldout_share)
    return Workload(
        environment=SearchEnvironment(codec, world, top_k=settings.top_k, max_passage_tokens=settings.max_passage_tokens),
        prompts=SearchPromptSource(codec, split, two_hop_share=settings.two_hop_share, seed=config.seed),
    )
