"""From the configuration to a workload: the one entry point for the agent loop, the scorer and the warm start."""

from dataclasses import dataclass
from pathlib import Path

from libra_core.config.models import LibraConfig
from libra_core.config.workload import DapoMathConfig, R2EGymConfig, SearchR1Config, SyntheticConfig
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
            if config.workload.train_files:
                return _search_r1_files(config.workload, model_folder, config)
            return _search_r1(config.workload, model_folder, config.seed)
        case DapoMathConfig():
            return _dapo_math(config.workload, model_folder, config)
        case R2EGymConfig():
            raise NotImplementedError
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


def _search_r1_files(settings: SearchR1Config, model_folder: Path, config: LibraConfig) -> Workload:
    from libra_core.workloads.chat import Chat
    from libra_core.workloads.search_r1.choose import open_retriever
    from libra_core.workloads.search_r1.file_source import FileQuestionSource
    from libra_core.workloads.search_r1.questions_file import load_questions
    from libra_core.workloads.search_r1.tag_environment import TagSearchEnvironment
    from libra_core.workloads.text_codec import TextCodec

    codec = TextCodec.from_folder(model_folder)
    training = [question for file in settings.train_files for question in load_questions(Path(file))]
    heldout = [question for file in settings.heldout_files for question in load_questions(Path(file))]
    return Workload(
        environment=TagSearchEnvironment(codec, settings, open_retriever(settings, Path(config.run.root) / "cache" / "bm25")),
        prompts=FileQuestionSource(Chat(codec), training, heldout, seed=config.seed),
    )


def _dapo_math(settings: DapoMathConfig, model_folder: Path, config: LibraConfig) -> Workload:
    from libra_core.workloads.chat import Chat
    from libra_core.workloads.dapo_math.environment import PYTHON_HELP, DapoMathEnvironment
    from libra_core.workloads.dapo_math.problems import load_problems
    from libra_core.workloads.dapo_math.source import MathPromptSource
    from libra_core.workloads.sandbox.host import SandboxHost
    from libra_core.workloads.text_codec import TextCodec

    codec = TextCodec.from_folder(model_folder)
    if settings.train_files:
        training = [problem for file in settings.train_files for problem in load_problems(Path(file))]
        heldout = [problem for file in settings.heldout_files for problem in load_problems(Path(file))]
        prompts = MathPromptSource.of_files(Chat(codec), training, heldout, config.seed)
    else:
        prompts = MathPromptSource.generated(Chat(codec), settings.generated_tasks, config.seed)
    environment = DapoMathEnvironment(
        codec,
        settings,
        max_new_tokens=config.rollout.max_new_tokens,
        sandboxes=SandboxHost(settings.sandbox) if settings.python_tool else None,
    )
    return Workload(environment=environment, prompts=prompts.helped(PYTHON_HELP) if settings.python_tool else prompts)


def _synthetic(settings: SyntheticConfig, model_folder: Path, seed: int) -> Workload:
    from libra_core.workloads.synthetic.environment import SyntheticEnvironment
    from libra_core.workloads.synthetic.source import SyntheticPromptSource
    from libra_core.workloads.synthetic.vocabulary import draw_vocabulary, vocabulary_size

    vocabulary = draw_vocabulary(vocabulary_size(model_folder), turn_tokens=settings.turn_tokens, seed=seed)
    return Workload(
        environment=SyntheticEnvironment(settings, vocabulary, seed=seed),
        prompts=SyntheticPromptSource(vocabulary_size=vocabulary.size, prompt_tokens=settings.prompt_tokens, seed=seed),
    )
