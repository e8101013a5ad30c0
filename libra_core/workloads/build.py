"""From the configuration to a workload: the one entry point for the agent loop, the scorer and the warm start."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from libra_core.config.models import LibraConfig
from libra_core.config.sandbox import SandboxConfig
from libra_core.config.workload import DapoMathConfig, R2EGymConfig, SearchR1Config, SyntheticConfig
from libra_core.errors import ConfigError
from libra_core.ports.environment import Environment
from libra_core.workloads.fitting import CountedPrompts, FittingStream, PromptRoom
from libra_core.workloads.rows import load_files

if TYPE_CHECKING:
    from libra_core.workloads.r2e_gym.image_instances import ImageInstance

_Parts = tuple[Environment, CountedPrompts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tools and rewards, and the prompts that need them."""

    environment: Environment
    prompts: CountedPrompts
    vocabulary: int | None
    """Token ids of prompts and tools are below it; None for a folder that does not say."""
    cut_mark: tuple[int, ...]
    """Stands where a tool's answer was too long; empty without a tokenizer."""


def build_workload(config: LibraConfig, model_folder: Path, *, any_length: bool = False) -> Workload:
    """Assemble the configured workload for the model in `model_folder`; takes up to a second, no torch.

    With `any_length` no prompt is too long, for looks at a workload without its model.

    Raises:
        ModelFolderError: when the folder lacks what the workload reads of it: a usable tokenizer.json, or the vocabulary's size.
    """
    from libra_core.workloads.synthetic.vocabulary import known_vocabulary
    from libra_core.workloads.tool_text import cut_mark

    vocabulary = known_vocabulary(model_folder)
    room = PromptRoom(max_tokens=sys.maxsize if any_length else config.rollout.max_context_tokens, vocabulary=vocabulary)
    environment, prompts = _parts(config, model_folder, room)
    return Workload(
        environment=environment,
        prompts=prompts,
        vocabulary=vocabulary,
        cut_mark=cut_mark(model_folder),
    )


def _parts(config: LibraConfig, model_folder: Path, room: PromptRoom) -> _Parts:
    match config.workload:
        case SearchR1Config():
            if config.workload.train_files:
                return _search_r1_files(config.workload, model_folder, config, room)
            return _search_r1(config.workload, model_folder, config, room)
        case DapoMathConfig():
            return _dapo_math(config.workload, model_folder, config, room)
        case R2EGymConfig():
            return _r2e_gym(config.workload, model_folder, config, room)
        case SyntheticConfig():
            return _synthetic(config.workload, model_folder, config.seed, room)


def _search_r1(settings: SearchR1Config, model_folder: Path, config: LibraConfig, room: PromptRoom) -> _Parts:
    from libra_core.workloads.search_r1.drift import QuestionDrift
    from libra_core.workloads.search_r1.environment import SearchEnvironment
    from libra_core.workloads.search_r1.facts import load_world, split_world
    from libra_core.workloads.search_r1.source import SearchPromptSource
    from libra_core.workloads.text_codec import TextCodec

    codec = TextCodec.from_folder(model_folder)
    world = load_world()
    split = split_world(world, settings.heldout_share)
    prompts = SearchPromptSource(
        codec,
        split,
        two_hop_share=settings.two_hop_share,
        seed=config.seed,
        drift=QuestionDrift(settings, config.rollout.groups_per_step),
    )
    environment = SearchEnvironment(codec, world, top_k=settings.top_k, max_passage_tokens=settings.max_passage_tokens)
    return environment, FittingStream(prompts, room)


def _search_r1_files(settings: SearchR1Config, model_folder: Path, config: LibraConfig, room: PromptRoom) -> _Parts:
    from libra_core.workloads.chat import Chat
    from libra_core.workloads.search_r1.choose import index_cache, open_retriever
    from libra_core.workloads.search_r1.file_source import FileQuestionSource
    from libra_core.workloads.search_r1.questions_file import load_questions
    from libra_core.workloads.search_r1.tag_environment import TagSearchEnvironment
    from libra_core.workloads.text_codec import TextCodec

    codec = TextCodec.from_folder(model_folder)
    training, heldout = load_files(settings.train_files, load_questions), load_files(settings.heldout_files, load_questions)
    environment = TagSearchEnvironment(codec, settings, open_retriever(settings, index_cache(config)))
    return environment, FileQuestionSource(Chat(codec), training, heldout, seed=config.seed, room=room)


def _dapo_math(settings: DapoMathConfig, model_folder: Path, config: LibraConfig, room: PromptRoom) -> _Parts:
    from libra_core.workloads.chat import Chat
    from libra_core.workloads.dapo_math.environment import PYTHON_HELP, DapoMathEnvironment
    from libra_core.workloads.dapo_math.problems import load_problems
    from libra_core.workloads.dapo_math.source import FileProblemSource, MathPromptSource
    from libra_core.workloads.sandbox.host import SandboxHost
    from libra_core.workloads.text_codec import TextCodec

    codec = TextCodec.from_folder(model_folder)
    help_text = PYTHON_HELP if settings.python_tool else ""
    prompts: CountedPrompts
    if settings.train_files:
        training, heldout = load_files(settings.train_files, load_problems), load_files(settings.heldout_files, load_problems)
        prompts = FileProblemSource(Chat(codec), training, heldout, seed=config.seed, room=room, help_text=help_text)
    else:
        generated = MathPromptSource.generated(Chat(codec), settings.generated_tasks, config.seed)
        prompts = FittingStream(generated.helped(help_text), room)
    check_deadlines(config)
    environment = DapoMathEnvironment(
        codec,
        settings,
        max_new_tokens=config.rollout.max_new_tokens,
        grades_cut=config.rollout.on_length_limit == "grade",
        sandboxes=SandboxHost(settings.sandbox) if settings.python_tool else None,
    )
    return environment, prompts


def _r2e_gym(settings: R2EGymConfig, model_folder: Path, config: LibraConfig, room: PromptRoom) -> _Parts:
    from libra_core.workloads.chat import Chat
    from libra_core.workloads.r2e_gym.environment import R2EGymEnvironment
    from libra_core.workloads.r2e_gym.image_instances import ImageRepositories
    from libra_core.workloads.r2e_gym.preparing import ensure_tasks
    from libra_core.workloads.r2e_gym.repositories import MutatedPackages
    from libra_core.workloads.r2e_gym.source import IssueSource, split_tasks
    from libra_core.workloads.sandbox.host import SandboxHost
    from libra_core.workloads.text_codec import TextCodec

    check_deadlines(config)
    codec = TextCodec.from_folder(model_folder)
    host = SandboxHost(settings.sandbox)
    if settings.train_files:
        training, heldout = _instances(settings.train_files), _instances(settings.heldout_files)
        environment = R2EGymEnvironment(codec, settings, ImageRepositories([*training, *heldout], settings, host))
        return environment, IssueSource(Chat(codec), training, heldout, seed=config.seed, room=room)
    prepared = Path(settings.prepared)
    tasks = ensure_tasks(prepared, settings.sandbox, lambda name, share: None)
    training, heldout = split_tasks(tasks, settings.heldout_share)
    repositories = MutatedPackages(prepared, tasks, host, test_wall_s=settings.test_wall_s)
    issues = IssueSource(Chat(codec), training, heldout, seed=config.seed, room=room)
    return R2EGymEnvironment(codec, settings, repositories), issues


def check_deadlines(config: LibraConfig) -> None:
    """Those of the run leave room for those of the workload's commands; raises `ConfigError`."""
    match config.workload:
        case R2EGymConfig() as settings:
            if config.rollout.score_deadline_s <= settings.test_wall_s:
                raise ConfigError(
                    f"rollout.score_deadline_s ({config.rollout.score_deadline_s:g}) must exceed workload.test_wall_s "
                    f"({settings.test_wall_s:g}): a fresh sandbox has to be made before the hidden tests run; raise the first"
                )
            _check_tool_deadline(config, settings.sandbox)
        case DapoMathConfig(python_tool=True) as settings:
            _check_tool_deadline(config, settings.sandbox)
        case _:
            pass


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

    return load_files(files, load_instances)


def _synthetic(settings: SyntheticConfig, model_folder: Path, seed: int, room: PromptRoom) -> _Parts:
    from libra_core.workloads.synthetic.environment import SyntheticEnvironment
    from libra_core.workloads.synthetic.source import SyntheticPromptSource
    from libra_core.workloads.synthetic.vocabulary import draw_vocabulary, vocabulary_size

    vocabulary = draw_vocabulary(vocabulary_size(model_folder), turn_tokens=settings.turn_tokens, seed=seed)
    prompts = SyntheticPromptSource(vocabulary_size=vocabulary.size, prompt_tokens=settings.prompt_tokens, seed=seed)
    return SyntheticEnvironment(settings, vocabulary, seed=seed), FittingStream(prompts, room)
