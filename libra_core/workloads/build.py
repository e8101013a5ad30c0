"""From the configuration to a workload: the one entry point for the agent loop, the scorer and the warm start."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from libra_core.config.models import LibraConfig
from libra_core.config.sandbox import SandboxConfig
from libra_core.config.workload import DapoMathConfig, R2EGymConfig, SearchR1Config, SyntheticConfig
from libra_core.errors import ConfigError
from libra_core.ports.environment import Environment, PromptSource

if TYPE_CHECKING:
    from libra_core.workloads.r2e_gym.image_instances import ImageInstance


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
            return _search_r1(config.workload, model_folder, config)
        case DapoMathConfig():
            return _dapo_math(config.workload, model_folder, config)
        case R2EGymConfig():
            return _r2e_gym(config.workload, model_folder, config)
        case SyntheticConfig():
            return _synthetic(config.workload, model_folder, config.seed)


def _search_r1(settings: SearchR1Config, model_folder: Path, config: LibraConfig) -> Workload:
    from libra_core.workloads.search_r1.drift import Drift
    from libra_core.workloads.search_r1.environment import SearchEnvironment
    from libra_core.workloads.search_r1.facts import load_world, split_world
    from libra_core.workloads.search_r1.source import SearchPromptSource
    from libra_core.workloads.text_codec import TextCodec

    codec = TextCodec.from_folder(model_folder)
    world = load_world()
    split = split_world(world, settings.heldout_share)
    return Workload(
        environment=SearchEnvironment(codec, world, top_k=settings.top_k, max_passage_tokens=settings.max_passage_tokens),
        prompts=SearchPromptSource(
            codec,
            split,
            two_hop_share=settings.two_hop_share,
            seed=config.seed,
            drift=Drift(settings, config.rollout.groups_per_step),
        ),
    )


def _search_r1_files(settings: SearchR1Config, model_folder: Path, config: LibraConfig) -> Workload:
    from libra_core.workloads.chat import Chat
    from libra_core.workloads.search_r1.choose import index_cache, open_retriever
    from libra_core.workloads.search_r1.file_source import FileQuestionSource
    from libra_core.workloads.search_r1.questions_file import load_questions
    from libra_core.workloads.search_r1.tag_environment import TagSearchEnvironment
    from libra_core.workloads.text_codec import TextCodec

    codec = TextCodec.from_folder(model_folder)
    training = [question for file in settings.train_files for question in load_questions(Path(file))]
    heldout = [question for file in settings.heldout_files for question in load_questions(Path(file))]
    return Workload(
        environment=TagSearchEnvironment(codec, settings, open_retriever(settings, index_cache(config))),
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
    if settings.python_tool:
        _check_tool_deadline(config, settings.sandbox)
    environment = DapoMathEnvironment(
        codec,
        settings,
        max_new_tokens=config.rollout.max_new_tokens,
        sandboxes=SandboxHost(settings.sandbox) if settings.python_tool else None,
    )
    return Workload(environment=environment, prompts=prompts.helped(PYTHON_HELP) if settings.python_tool else prompts)


def _r2e_gym(settings: R2EGymConfig, model_folder: Path, config: LibraConfig) -> Workload:
    from libra_core.workloads.chat import Chat
    from libra_core.workloads.r2e_gym.environment import R2EGymEnvironment
    from libra_core.workloads.r2e_gym.image_instances import ImageRepositories
    from libra_core.workloads.r2e_gym.preparing import ensure_tasks
    from libra_core.workloads.r2e_gym.repositories import MutatedPackages
    from libra_core.workloads.r2e_gym.source import IssueSource, split_tasks
    from libra_core.workloads.sandbox.host import SandboxHost
    from libra_core.workloads.text_codec import TextCodec

    if config.rollout.score_deadline_s <= settings.test_wall_s:
        raise ConfigError(
            f"rollout.score_deadline_s ({config.rollout.score_deadline_s:g}) must exceed workload.test_wall_s "
            f"({settings.test_wall_s:g}): a fresh sandbox has to be made before the hidden tests run; raise the first"
        )
    _check_tool_deadline(config, settings.sandbox)
    codec = TextCodec.from_folder(model_folder)
    host = SandboxHost(settings.sandbox)
    if settings.train_files:
        training, heldout = _instances(settings.train_files), _instances(settings.heldout_files)
        repositories = ImageRepositories([*training, *heldout], settings, host)
        return Workload(
            environment=R2EGymEnvironment(codec, settings, repositories),
            prompts=IssueSource(Chat(codec), training, heldout, seed=config.seed),
        )
    prepared = Path(settings.prepared)
    tasks = ensure_tasks(prepared, settings.sandbox, lambda name, share: None)
    training, heldout = split_tasks(tasks, settings.heldout_share)
    repositories = MutatedPackages(prepared, tasks, host, test_wall_s=settings.test_wall_s)
    return Workload(
        environment=R2EGymEnvironment(codec, settings, repositories),
        prompts=IssueSource(Chat(codec), training, heldout, seed=config.seed),
    )


def _check_tool_deadline(config: LibraConfig, sandbox: SandboxConfig) -> None:
    """A sandbox that is lost must be recognised as that before its command is answered for as a slow one."""
    from libra_core.workloads.sandbox.local import LOST_AFTER_S

    least_s = sandbox.wall_s + LOST_AFTER_S
    if config.rollout.tool_deadline_s < least_s:
        raise ConfigError(
            f"rollout.tool_deadline_s ({config.rollout.tool_deadline_s:g}) must be at least workload.sandbox.wall_s + "
            f"{LOST_AFTER_S:g} = {least_s:g}: only then is it known whether the command was slow or its sandbox lost; raise the "
            "first or lower the second"
        )


def _instances(files: tuple[str, ...]) -> list["ImageInstance"]:
    from libra_core.workloads.r2e_gym.image_instances import load_instances

    return [instance for file in files for instance in load_instances(Path(file))]


def _synthetic(settings: SyntheticConfig, model_folder: Path, seed: int) -> Workload:
    from libra_core.workloads.synthetic.environment import SyntheticEnvironment
    from libra_core.workloads.synthetic.source import SyntheticPromptSource
    from libra_core.workloads.synthetic.vocabulary import draw_vocabulary, vocabulary_size

    vocabulary = draw_vocabulary(vocabulary_size(model_folder), turn_tokens=settings.turn_tokens, seed=seed)
    return Workload(
        environment=SyntheticEnvironment(settings, vocabulary, seed=seed),
        prompts=SyntheticPromptSource(vocabulary_size=vocabulary.size, prompt_tokens=settings.prompt_tokens, seed=seed),
    )
