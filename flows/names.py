"""Names and tags by which runs are found in Prefect."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.context import TagsContext
from prefect.runtime import flow_run

from flows.parameters import TrainParameters
from libra_core.config import LibraConfig
from libra_core.errors import LibraError
from libra_core.types.session import SessionRef

REFUSED = "refused"
"""Ends the name of a run whose parameters cannot be read; the flow itself says why."""


def training_run_name() -> str:
    """`quickstart-libra-s0`, from the parameters of the flow run that starts. Never raises: to Prefect that is a crash."""
    given: Any = flow_run.parameters.get("parameters")
    try:
        config = TrainParameters.model_validate(given).load()
    except (LibraError, ValueError, OSError):
        return f"{asked_for(given, 'config')}-{REFUSED}"
    return f"{config.run.name}-{config.tracking.baseline}-s{config.seed}"


def asked_for(given: Any, key: str) -> str:
    """Stem of the file that parameters name, whatever they are."""
    value = given.get(key) if isinstance(given, Mapping) else getattr(given, key, None)
    return Path(str(value)).stem or key


def iteration_run_name() -> str:
    """`quickstart-20260101-120000-s0/it-00005`: sorts well, and tells trainings apart."""
    session: SessionRef = flow_run.parameters["session"]
    return f"{Path(session.run_dir).name}/it-{flow_run.parameters['step']:05d}"


def replanning_run_name() -> str:
    """`quickstart-20260101-120000-s0/plan-00005`."""
    session: SessionRef = flow_run.parameters["session"]
    return f"{Path(session.run_dir).name}/plan-{flow_run.parameters['step']:05d}"


def run_tags(config: LibraConfig, run_id: str) -> tuple[str, ...]:
    return ("libra", config.workload.kind, config.tracking.baseline, run_id)


@contextmanager
def untagged() -> Iterator[None]:
    """Keep a flow's tags from its tasks: a tagged task asks the server for a concurrency slot and fails when it restarts."""
    with TagsContext(current_tags=set()):
        yield
