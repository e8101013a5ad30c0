"""Which agent plays which workload."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from libra_core.config.models import LibraConfig
from libra_core.config.workload import DapoMathConfig, R2EGymConfig, SearchR1Config
from libra_core.errors import ConfigError
from libra_core.workloads.check.agents import (
    Agent,
    Babbler,
    RandomMathematician,
    RandomRepairer,
    RandomSearcher,
    ScriptedMathematician,
    ScriptedRepairer,
    ScriptedSearcher,
)
from libra_core.workloads.r2e_gym.tasks import read_tasks
from libra_core.workloads.r2e_gym.workspace import TaskFiles

AgentName = Literal["scripted", "random", "garbage"]


def cast(config: LibraConfig, name: AgentName) -> Callable[[int], Agent]:
    """A maker of agents, by episode number.

    Raises:
        ConfigError: for a workload that has no such agent.
    """
    if name == "garbage":
        return lambda number: Babbler(random.Random(f"garbage/{number}"))
    match config.workload:
        case SearchR1Config():
            return _made(name, ScriptedSearcher, RandomSearcher)
        case DapoMathConfig(python_tool=python):
            return _made(name, lambda: ScriptedMathematician(python=python), RandomMathematician)
        case R2EGymConfig(train_files=()):
            prepared = Path(config.workload.prepared)
            tasks = {task.key: task for task in read_tasks(prepared)}
            return _made(name, lambda: ScriptedRepairer(tasks, TaskFiles(prepared)), RandomRepairer)
        case _:
            raise ConfigError(f"there is no {name} agent for workload.kind = {config.workload.kind}; use garbage")


def _made(name: AgentName, scripted: Callable[[], Agent], at_random: Callable[[random.Random], Agent]) -> Callable[[int], Agent]:
    if name == "scripted":
        return lambda number: scripted()
    return lambda number: at_random(random.Random(f"{name}/{number}"))
