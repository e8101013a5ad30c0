"""`libra doctor`: what a run of a configuration needs, a line each."""

from dataclasses import asdict
from pathlib import Path

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from flows.planned import planned
from libra_core.config import load_config
from libra_core.errors import LibraError
from libra_core.preflight.finding import Finding
from libra_core.preflight.preflight import preflight

READY, NOT_READY = 0, 2


def run_doctor(config_path: Path, overrides: list[str], *, as_json: bool) -> int:
    """Returns the exit status."""
    with json_output(as_json) as emit:
        findings = run_checks(config_path, overrides)
        ready = all(finding.ok for finding in findings)
        if not as_json:
            width = max(len(finding.name) for finding in findings)
            for finding in findings:
                terminal().print(line(finding, width), highlight=False, soft_wrap=True)
        emit({"ready": ready, "config": str(config_path), "findings": [asdict(finding) for finding in findings]})
    return READY if ready else NOT_READY


def run_checks(config_path: Path, overrides: list[str]) -> list[Finding]:
    """The configuration first: without one there is nothing else to look at."""
    try:
        config = load_config(config_path, overrides)
    except LibraError as error:
        return [_failed("config", error)]
    results = [Finding(name="config", ok=True, sentence=f"{config_path} can be read")]
    try:
        chosen = planned(config)
    except LibraError as error:
        return [*results, _failed("plan", error)]
    results += [Finding(name="plan", ok=True, sentence=chosen.line)] if chosen.line else []
    return [*results, *preflight(chosen.config)]


def _failed(name: str, error: LibraError) -> Finding:
    sentence, _, remedy = str(error).partition("; ")
    return Finding(name=name, ok=False, sentence=sentence, remedy=remedy or None)


def line(finding: Finding, width: int) -> str:
    return f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name:<{width}}  {finding.text}"
