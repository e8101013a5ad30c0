"""What the workload reads and uses: files, prompts that fit, sandboxes; for a simulated run its tables."""

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from libra_core.config import LibraConfig
from libra_core.config.workload import DapoMathConfig, R2EGymConfig, SearchR1Config, SyntheticConfig
from libra_core.costs.api import load_device, read_measured
from libra_core.errors import ConfigError, ResourceError
from libra_core.planning.run_costs import device_of
from libra_core.preflight.model import tokenizer_folder
from libra_core.preflight.needs import existing
from libra_core.workloads.fitting import CountedPrompts, PromptRoom
from libra_core.workloads.rows import Keys, load_files

_SMALL_CORPUS_BYTES = 64 << 20
"""Reading a larger one takes longer than a look should."""


def simulation(config: LibraConfig) -> str:
    """Tables of the truth and of the law, or the recorded lengths."""
    from libra_core.simulation.backend import check_simulated  # compiles nothing yet, but loads numba

    return check_simulated(config)


def planner(config: LibraConfig) -> str:
    """What replanning needs; without one, a missing law costs its forecasts and nothing else."""
    if not config.replanning.every_steps:
        return "not needed: the plan is not compared"
    device = load_device(device_of(config))
    if config.planner.profile is not None:
        read_measured(Path(config.planner.profile))
    return f"device {device.name}, profile {config.planner.profile or 'none'}"


def files(config: LibraConfig) -> str:
    """Every row of every file, as the run itself will read them; of a large corpus only that it is there."""
    settings = config.workload
    if isinstance(settings, SyntheticConfig):
        return "drawn by seed"
    if isinstance(settings, R2EGymConfig) and not settings.train_files:
        return _prepared(Path(settings.prepared))
    if not settings.train_files:
        return "of this package"
    load = _loader(settings.kind)
    rows = sum(len(load_files(files, load)) for files in (settings.train_files, settings.heldout_files))
    if isinstance(settings, SearchR1Config) and settings.retriever == "bm25" and settings.corpus is not None:
        _check_corpus(Path(settings.corpus))
    return f"{rows} rows in {len(settings.train_files) + len(settings.heldout_files)} files"


def _prepared(folder: Path) -> str:
    from libra_core.workloads.r2e_gym.preparing import is_current

    if is_current(folder):
        return f"tasks in {folder}"
    place = existing(folder)
    if not os.access(place, os.W_OK):
        raise ConfigError(f"workload.prepared = {folder} cannot be written; name another folder")
    return f"tasks are made in {folder} first, which takes minutes"


def _loader(kind: str) -> Callable[[Path, str, Keys], Sequence[Any]]:
    match kind:
        case "search_r1":
            from libra_core.workloads.search_r1.questions_file import load_questions

            return load_questions
        case "dapo_math":
            from libra_core.workloads.dapo_math.problems import load_problems

            return load_problems
        case _:
            from libra_core.workloads.r2e_gym.image_instances import load_instances

            return load_instances


def _check_corpus(corpus: Path) -> None:
    from libra_core.workloads.search_r1.corpus_index import read_passages

    if not corpus.is_file():
        raise ConfigError(f"no corpus at {corpus}; workload.corpus names a JSONL or JSON file of passages")
    if corpus.stat().st_size <= _SMALL_CORPUS_BYTES and not any(True for _ in read_passages(corpus)):
        raise ConfigError(f"{corpus} holds no passages; workload.corpus names a JSONL or JSON file of them")


def prompts(config: LibraConfig) -> str:
    """That some leave room to answer, and how many do not."""
    with tokenizer_folder(config) as folder:
        counted = _prompts(config, folder) if folder is not None else None
        if counted is None:
            return "looked at when the run reads them"
        return ". ".join(counted.census()) or f"all leave room to answer within {config.rollout.max_context_tokens} tokens"


def _prompts(config: LibraConfig, folder: Path) -> CountedPrompts | None:
    """None where making them takes minutes."""
    from libra_core.workloads.build import build_workload

    match config.workload:
        case SearchR1Config(train_files=files) as settings if files:  # without the index of the corpus
            from libra_core.workloads.chat import Chat
            from libra_core.workloads.search_r1.file_source import FileQuestionSource
            from libra_core.workloads.search_r1.questions_file import load_questions
            from libra_core.workloads.synthetic.vocabulary import known_vocabulary
            from libra_core.workloads.text_codec import TextCodec

            room = PromptRoom(max_tokens=config.rollout.max_context_tokens, vocabulary=known_vocabulary(folder))
            training, heldout = load_files(files, load_questions), load_files(settings.heldout_files, load_questions)
            return FileQuestionSource(Chat(TextCodec.from_folder(folder)), training, heldout, seed=config.seed, room=room)
        case R2EGymConfig(train_files=()) as settings:
            from libra_core.workloads.r2e_gym.preparing import is_current

            return build_workload(config, folder).prompts if is_current(Path(settings.prepared)) else None
        case _:
            return build_workload(config, folder).prompts


def sandbox(config: LibraConfig) -> str:
    """A command is run in one, with the configured limits; of containers only that their program is there."""
    from libra_core.workloads.build import check_deadlines

    check_deadlines(config)
    match config.workload:
        case R2EGymConfig(train_files=files) as settings if files:
            program = settings.sandbox.container
            if shutil.which(program) is None:
                raise ResourceError(
                    f"workload.sandbox.container = {program} is not installed, and instances of files run in their images; "
                    "install it, or name the other one"
                )
            return f"containers by {shutil.which(program)}"
        case R2EGymConfig() as settings:
            pass
        case DapoMathConfig(python_tool=True) as settings:
            pass
        case _:
            return "the workload runs no commands"
    from libra_core.workloads.sandbox.host import limits_of
    from libra_core.workloads.sandbox.local import find_isolation

    limits = limits_of(settings.sandbox)
    wanted, unsafe = settings.sandbox.isolation, settings.sandbox.unsafe_local
    return f"commands run in {asyncio.run(find_isolation(limits, wanted=wanted, unsafe_local=unsafe))}"
