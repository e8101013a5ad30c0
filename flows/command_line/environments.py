"""`libra env check` and `libra data prepare`: workloads without a model. Imports neither Ray nor torch."""

import asyncio
import itertools
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from flows.views.console import make_board
from libra_core.config import LibraConfig, load_config
from libra_core.config.loading import validate_config
from libra_core.errors import ConfigError
from libra_core.workloads.rows import FORMATS

WORKLOADS: Final = ("search_r1", "r2e_gym", "dapo_math", "synthetic")
_TURNS_OF_AGENTS: Final = 12
"""At least so many, whatever a run allows its policy: the random and the garbage agent should meet every tool."""
AGENTS: Final = ("scripted", "random", "garbage")


def workload_config(workload: str, overrides: list[str]) -> LibraConfig:
    """Of a workload's name, with its defaults, or of a YAML file; raises `ConfigError` for neither."""
    if workload in WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{workload}.yaml"
            path.write_text(f"workload: {{kind: {workload}}}\n", encoding="utf-8")
            return load_config(path, overrides)
    if not workload.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"no workload {workload!r}; it is one of {', '.join(WORKLOADS)}, or a configuration file, whose name ends in .yaml"
            + _as_data(workload, "libra env check NAME --set 'workload.train_files=[{}]'")
        )
    return load_config(Path(workload), overrides)


def _as_data(given: str, command: str) -> str:
    """What to write when a data file was named in the place of its workload."""
    if not given.endswith(FORMATS):
        return ""
    return f"; a data file comes beside the name of its workload: {command.format(given)}"


def run_env_check(workload: str, overrides: list[str], *, agent: str, episodes: int, at_once: int, as_json: bool) -> None:
    """Play episodes without a model and print what came of them; raises `LibraError`."""
    if agent not in AGENTS:
        raise ConfigError(f"--agent {agent!r}: it is one of {', '.join(AGENTS)}")
    config = workload_config(workload, overrides)
    with json_output(as_json) as emit:
        facts = {"workload": config.workload.kind, "agent": agent, **_check(config, agent, episodes, at_once)}
        if not as_json:
            terminal().print(_table(facts))
        emit(facts)


def _check(config: LibraConfig, agent: str, episodes: int, at_once: int) -> dict[str, Any]:
    from libra_core.workloads.build import build_workload
    from libra_core.workloads.check.casting import AgentName
    from libra_core.workloads.check.casting import cast as agents_of
    from libra_core.workloads.check.codec import byte_codec, write_byte_model
    from libra_core.workloads.check.runner import Checker, CheckPlan

    plan = CheckPlan(
        episodes=episodes,
        at_once=at_once,
        max_turns=max(config.rollout.max_turns, _TURNS_OF_AGENTS),
        tool_deadline_s=config.rollout.tool_deadline_s,
        score_deadline_s=config.rollout.score_deadline_s,
        queue_deadline_s=config.rollout.queue_deadline_s,
        threads=config.rollout.tool_threads,
    )
    with tempfile.TemporaryDirectory() as folder:
        write_byte_model(Path(folder))
        built = build_workload(config, Path(folder), any_length=True)
    make_agent = agents_of(config, cast(AgentName, agent))
    checker = Checker(built.environment, byte_codec(), plan)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal(stderr=True)) as progress:
        bar = progress.add_task(f"{config.workload.kind}, {agent} agent", total=episodes)
        prompts = itertools.islice(built.prompts.training(0), episodes)
        report = asyncio.run(checker.run(prompts, make_agent, lambda done: progress.update(bar, completed=done)))
    return asdict(report)


def _table(facts: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    return table


def run_data_prepare(workload: str, *, sources: list[Path], corpus: Path | None, folder: Path, as_json: bool) -> None:
    """Check and keep the files of a workload with a manifest of checksums, or make its embedded tasks; raises `ConfigError`."""
    if workload not in WORKLOADS:
        raise ConfigError(
            f"no workload {workload!r}; it is one of {', '.join(WORKLOADS)}"
            + _as_data(workload, "libra data prepare NAME --source {}")
        )
    from libra_core.workloads.data import prepare_embedded, prepare_files

    config = validate_config({"workload": {"kind": workload}})
    with json_output(as_json) as emit:
        with make_board(terminal(stderr=True)) as board:
            if sources or corpus:
                facts = prepare_files(config, sources, corpus, folder / workload, board.phase)
            else:
                facts = prepare_embedded(config, board.phase)
        if not as_json:
            terminal().print_json(data=facts)
        emit(facts)
