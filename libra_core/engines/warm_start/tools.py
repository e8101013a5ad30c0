"""The embedded policy for workloads with tools: it imitates the scripted agents for a bounded number of steps."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

from libra_core.config.models import LibraConfig
from libra_core.config.workload import DapoMathConfig, R2EGymConfig
from libra_core.engines.warm_start.imitation import Imitator
from libra_core.engines.warm_start.lessons import Lessons, MathLessons, RepairLessons, encoded
from libra_core.engines.warm_start.policy import new_policy, save_policy
from libra_core.engines.warm_start.recipe import Report, batches, teach
from libra_core.engines.warm_start.result import write_facts
from libra_core.engines.warm_start.sampler import SamplingLimits
from libra_core.engines.warm_start.tokenizer import train_tool_tokenizer
from libra_core.engines.warm_start.tool_meter import tool_success
from libra_core.errors import ConfigError
from libra_core.types.trajectory import Prompt
from libra_core.workloads.build import build_workload
from libra_core.workloads.dapo_math.programs import SOLVABLE, solvable
from libra_core.workloads.r2e_gym.preparing import ensure_tasks
from libra_core.workloads.r2e_gym.source import split_tasks
from libra_core.workloads.r2e_gym.workspace import TaskFiles
from libra_core.workloads.text_codec import TextCodec

_TOKENIZER_LESSONS: Final = 300
_TAUGHT_SHARE: Final = 0.9
_MEASURED: Final = 24
"""Episodes with real tools; each takes about a second of two cores."""
_MEASURE_SEED: Final = 2
_MAX_NEW_TOKENS: Final = 384
_MAX_TURNS: Final = 4
"""Fixed, so that a cached success rate means the same for every run; enough for every lesson."""


def lessons_of(config: LibraConfig) -> tuple[Lessons, int]:
    """What the workload can teach, and its bound of a tool's answer in tokens.

    Raises:
        ConfigError: when there is nothing to imitate.
    """
    match config.workload:
        case DapoMathConfig(python_tool=True, train_files=(), generated_tasks=tasks) if solvable(tasks):
            return MathLessons(tasks), config.workload.max_tool_tokens
        case R2EGymConfig(train_files=()) as settings:
            folder = Path(settings.prepared)
            tasks = ensure_tasks(folder, settings.sandbox, lambda name, share: None)
            training, _ = split_tasks(tasks, settings.heldout_share)
            return RepairLessons(training, TaskFiles(folder)), settings.max_tool_tokens
        case settings:
            raise ConfigError(
                f"model.warm_start.tool_steps = {config.model.warm_start.tool_steps}, but workload.kind = {settings.kind} has "
                f"nothing to imitate as configured: r2e_gym without train_files has, and dapo_math with python_tool, without "
                f"train_files and with generated_tasks among {', '.join(SOLVABLE)}; set tool_steps = 0"
            )


def make_tool_policy(config: LibraConfig, folder: Path, report: Report) -> None:
    """Write the HF folder of a policy that has imitated, with its success on training prompts."""
    settings = config.model.warm_start
    torch.set_num_threads(settings.threads)
    report("writing lessons", 0.0)
    lessons, max_tool_tokens = lessons_of(config)
    rng = random.Random(settings.seed)
    shown = [text for _ in range(_TOKENIZER_LESSONS) for text in lessons.draw(rng).texts()]
    tokenizer = train_tool_tokenizer(shown, config.model.tiny.vocab_size)
    codec = TextCodec(tokenizer)
    policy = new_policy(config.model.tiny, tokenizer, settings.seed)
    stream = batches(lambda: encoded(lessons.draw(rng), codec, max_tool_tokens), settings.batch_size, rng)
    imitator = Imitator(policy, settings)
    teach(
        imitator,
        stream,
        settings.tool_steps,
        lambda loss, share: report(f"teaching to use tools, loss {loss:.2f}", _TAUGHT_SHARE * share),
    )
    save_policy(policy, tokenizer, folder)
    report("trying the tools", _TAUGHT_SHARE)
    limits = SamplingLimits(
        max_new_tokens=_MAX_NEW_TOKENS, max_context_tokens=config.model.tiny.max_positions, max_turns=_MAX_TURNS
    )
    workload = build_workload(config, folder)
    success = tool_success(policy, workload.environment, _distinct(workload.prompts.training(0)), limits, _MEASURE_SEED)
    write_facts(folder, skill_success=success, base_success=success, heldout_success=None)
    report(f"warm start done, base success {success:.2f}", 1.0)


def _distinct(prompts: Iterator[Prompt]) -> list[Prompt]:
    """The first few; a small set of tasks soon repeats itself."""
    return list({prompt.prompt_id: prompt for prompt in itertools.islice(prompts, _MEASURED)}.values())
