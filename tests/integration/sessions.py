"""Builders for tests that run a whole session: a random tiny policy, and the processes that belong to the test."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from libra_core import assembly
from libra_core.config import LibraConfig
from libra_core.config.loading import validate_config
from libra_core.config.model import TinyPolicyConfig
from libra_core.runtime.driver.session import SessionClients
from libra_core.types.reports import IterationReport, PublicationReport, RolloutReport, UpdateReport


def random_policy(folder: Path, seed: int = 0) -> Path:
    """The embedded policy's shape and tokenizer with random weights: it babbles to the length limit."""
    from libra_core.engines.warm_start.policy import new_policy, save_policy
    from libra_core.engines.warm_start.tokenizer import train_tokenizer
    from libra_core.workloads.search_r1.facts import load_world

    shape = TinyPolicyConfig()
    tokenizer = train_tokenizer(load_world(), shape.vocab_size)
    folder.mkdir(parents=True)
    save_policy(new_policy(shape, tokenizer, seed), tokenizer, folder)
    return folder


def small_config(model: Path, root: Path, **sections: dict[str, Any]) -> LibraConfig:
    """Steps of four groups of four, on one engine and one trainer rank unless `sections` say otherwise."""
    values: dict[str, dict[str, Any]] = {
        "model": {"path": str(model)},
        "run": {"root": str(root)},
        "rollout": {"groups_per_step": 4, "group_size": 4, "batch_deadline_s": 240.0},
        "training": {"steps": 8},
        "tracking": {"mlflow_uri": "off"},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return validate_config(values)


@contextmanager
def session(config: LibraConfig, run_dir: Path) -> Iterator[SessionClients]:
    run_dir.mkdir(parents=True, exist_ok=True)
    reference = assembly.open_session(config, run_dir, lambda _what, _share: None)
    try:
        yield assembly.connect(reference)
    finally:
        assembly.close_session(reference)


def iterate(connection: SessionClients, step: int) -> tuple[RolloutReport, UpdateReport, PublicationReport]:
    """One iteration without Prefect. The rewards of babble are all 0, so the update is skipped but counted."""
    rollout = connection.rollout.take_batch(step)
    connection.reward.score(rollout.batch_id)
    update = connection.trainer.update(rollout.batch_id, rollout.policy_version)
    return rollout, update, connection.rollout.publish(update.policy_version)


def reports_of(config: LibraConfig, run_dir: Path, steps: int) -> list[IterationReport]:
    """A whole session of so many iterations, with the account of each."""
    reports: list[IterationReport] = []
    with session(config, run_dir) as connection:
        for step in range(steps):
            reports.append(reported(connection, step))
        connection.rollout.finish_publication()
    return reports


def reported(connection: SessionClients, step: int) -> IterationReport:
    """One iteration with its account, published as a run does it."""
    rollout = connection.rollout.take_batch(step)
    reward = connection.reward.score(rollout.batch_id)
    update = connection.trainer.update(rollout.batch_id, rollout.policy_version)
    publication = connection.rollout.begin_publication(update.policy_version)
    return connection.rollout.iteration_report(step, rollout, reward, update, publication)


def own_processes(title: str) -> list[psutil.Process]:
    """Ray worker processes below this one whose title begins so, such as `ray::EngineActor`."""
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        try:
            if " ".join(process.cmdline()).startswith(title):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def run_until(
    connection: SessionClients, step: int, done: Callable[[], Any], within_s: float = 240.0
) -> tuple[int, list[UpdateReport]]:
    """Iterations go on while something happens in the background."""
    updates: list[UpdateReport] = []
    end = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end, f"not done after {within_s:.0f} s and {step} steps"
        updates.append(iterate(connection, step)[1])
        step += 1
    return step, updates
