"""The one preflight: every check that a configuration calls for, in the order in which a run would come to need it."""

from collections.abc import Callable, Iterator

from libra_core.config import LibraConfig
from libra_core.errors import PreflightError
from libra_core.preflight import data, host, model, servers
from libra_core.preflight.finding import Check, Finding, finding_of

Report = Callable[[str, float], None]
"""Told what is being looked at."""

_CHECKING = "looking at what the run needs"
_passed: list[LibraConfig] = []
"""Of this process: the command looks before it loads libraries, the flow before it starts anything."""


def preflight(config: LibraConfig, report: Report | None = None) -> list[Finding]:
    """Look at everything; seconds, unless the data are large. Writes nothing that stays.

    Where the model cannot be read, what depends on its size is not looked at.
    """
    tell = report or (lambda name, share: None)
    tell(_CHECKING, 0.0)
    findings: list[Finding] = []
    for name, check in _checks(config):
        tell(f"{_CHECKING}, {name}", 0.0)
        findings.append(finding_of(name, check))
        if name == "model" and not findings[-1].ok:
            break
    return findings


def require_ready(config: LibraConfig, report: Report | None = None) -> None:
    """Raises `PreflightError` with every finding that would end the run later."""
    if config in _passed:
        return
    failed = [finding for finding in preflight(config, report) if not finding.ok]
    if failed:
        raise PreflightError(". Also: ".join(dict.fromkeys(finding.text for finding in failed)))
    _passed.append(config)


def _checks(config: LibraConfig) -> Iterator[tuple[str, Check]]:
    """What depends on the model's size comes last."""
    yield from _always(config)
    if config.backend.kind == "simulated":
        yield "simulation", lambda: data.simulation(config)
        return
    yield from _of_the_cluster(config)
    yield "model", lambda: model.folder(config)
    yield from _of_the_model(config)


def _always(config: LibraConfig) -> Iterator[tuple[str, Check]]:
    yield "run root", lambda: host.run_root(config)
    yield "resume", lambda: host.resumable(config)
    yield "prefect", servers.prefect
    yield "mlflow", lambda: servers.mlflow(config)


def _of_the_cluster(config: LibraConfig) -> Iterator[tuple[str, Check]]:
    yield "packages", lambda: host.packages(config)
    yield "devices", lambda: host.devices(config)
    yield "ports", host.ports
    yield "ray", lambda: servers.ray(config)
    yield "planner", lambda: data.planner(config)
    yield "data", lambda: data.files(config)
    yield "sandbox", lambda: data.sandbox(config)
    yield "retriever", lambda: servers.retriever(config)


def _of_the_model(config: LibraConfig) -> Iterator[tuple[str, Check]]:
    yield "head size", lambda: model.head_size(config)
    yield "disk", lambda: host.disk(config)
    yield "memory", lambda: host.memory(config)
    yield "shared memory", lambda: host.shared_memory(config)
    yield "tokenizer", lambda: model.tokenizer(config)
    yield "prompts", lambda: data.prompts(config)
