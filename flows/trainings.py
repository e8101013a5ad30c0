"""Real trainings one after the other, as a comparison asks for them, and what they amount to."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.processes.child_training import train_in_a_child
from libra_core.config import LibraConfig
from libra_core.config.comparison import AskedTraining, ComparisonConfig, asked_trainings
from libra_core.errors import ConfigError, on_the_disk
from libra_core.tracking.comparison import (
    RESULTS,
    ComparedRun,
    figures_of,
    gpus_of,
    log_comparison,
    open_comparison,
    plan_sentence,
    results_of,
)
from libra_core.tracking.jsonl import read_metrics
from libra_core.tracking.run_folder import write_atomically

Report = Callable[[str, float], None]


def runnable_trainings(comparison: ComparisonConfig, overrides: Sequence[str]) -> list[tuple[AskedTraining, LibraConfig | str]]:
    """All that are asked for, each with its configuration, or with the sentence why its backend cannot run it.

    Raises:
        ConfigError: none can run.
    """
    results = [(training, _loaded(training)) for training in asked_trainings(comparison, overrides)]
    refusals = [config for _, config in results if isinstance(config, str)]
    if len(refusals) == len(results):
        raise ConfigError(f"none of the baselines can run: {refusals[0]}")
    return results


def _loaded(training: AskedTraining) -> LibraConfig | str:
    try:
        return training.load()
    except ConfigError as error:
        return str(error)


def compare_trainings(
    comparison: ComparisonConfig,
    trainings: Sequence[tuple[AskedTraining, LibraConfig | str]],
    folder: Path,
    uri: str,
    report: Report,
) -> dict[str, Any]:
    """One after the other; a failed one is a row with its sentence, and the next begins. Results are written after each.

    Raises `ResourceError` when MLflow cannot be used.
    """
    experiment = open_comparison(comparison, str(folder.parent), uri)
    outcomes: list[ComparedRun] = []
    for number, (training, config) in enumerate(trainings):
        report(f"{training.label} ({number + 1} of {len(trainings)})", number / len(trainings))
        outcomes.append(_outcome(training, config, comparison, folder, uri))
        results = results_of(comparison, outcomes)
        with on_the_disk(folder):
            write_atomically(folder / RESULTS, json.dumps(results, indent=1))
    report("all trainings have ended", 1.0)
    results = results_of(comparison, outcomes)
    url = None if experiment is None else log_comparison(folder, results, uri, experiment)
    return results | {"folder": str(folder), "mlflow_url": url}


def _outcome(
    training: AskedTraining, config: LibraConfig | str, comparison: ComparisonConfig, folder: Path, uri: str
) -> ComparedRun:
    if isinstance(config, str):
        return ComparedRun(baseline=training.baseline, seed=training.seed, status="refused", reason=config)
    places = (f"run.root={folder}", f"tracking.experiment={comparison.name}", f"tracking.mlflow_uri={uri}")
    end = train_in_a_child(training.file, (*training.overrides, *places), folder / training.label, comparison.deadline_s)
    known: dict[str, Any] = {
        "baseline": training.baseline,
        "seed": training.seed,
        "backend": config.backend.kind,
        "plan": plan_sentence(config),
        "gpus": gpus_of(config),
        "staleness": config.rollout.staleness,
        "exit_code": end.exit_code,
    }
    if end.summary is None:
        return ComparedRun(**known, status="failed", reason=end.sentence)
    run_dir = str(end.summary["run_dir"])
    try:
        figures = figures_of(read_metrics(Path(run_dir)), config, comparison)
    except ValueError as error:
        return ComparedRun(**known, status="failed", reason=str(error), run_dir=run_dir)
    return ComparedRun(**known, status="finished", run_dir=run_dir, figures=figures)
