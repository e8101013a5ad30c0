"""Problems of `reasoning-gym`, drawn by seed: nothing to download, nothing to memorise."""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from libra_core.errors import ConfigError
from libra_core.workloads.chat import ChatMessage
from libra_core.workloads.dapo_math.problems import BOXED, MathProblem


def generated_problem(tasks: Sequence[str], stream: str, index: int) -> MathProblem:
    """Problem `index` of a stream; depends on both names alone.

    Raises:
        ConfigError: for a task that reasoning-gym does not know.
    """
    draw = random.Random(f"{stream}/{index}")
    task = draw.choice(list(tasks))
    entry = _dataset(task, draw.randrange(2**31))[0]
    content = f"{entry['question']}\n{BOXED}"
    return MathProblem(
        key=f"{stream}/{index}",
        messages=(ChatMessage(role="user", content=content),),
        answer=str(entry["answer"]),
        source=task,
    )


@lru_cache(maxsize=256)
def _dataset(task: str, seed: int) -> Any:
    import reasoning_gym  # seconds: it imports every task

    try:
        return reasoning_gym.create_dataset(task, size=1, seed=seed)
    except ValueError as error:
        raise ConfigError(f"workload.generated_tasks: {error}") from None
