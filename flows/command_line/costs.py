"""`libra costs` and `libra calibrate`: how far the cost evaluator is from measurements, and measurements of this host."""

from pathlib import Path
from tempfile import TemporaryFile

from rich.table import Table

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from libra_core.config.loading import process_environment
from libra_core.costs.measured import MeasuredProfile, write_measured
from libra_core.costs.validation.dispatch import validate
from libra_core.costs.validation.report import ValidationReport
from libra_core.errors import ConfigError


def run_validate(profile: str, data: Path, *, as_json: bool) -> None:
    """Print the errors of one file of measurements, and which of its rows were comparable."""
    with json_output(as_json) as emit:
        report = validate(profile, data)
        if not as_json:
            _show(report)
        emit(report.as_json())


def run_calibrate(*, quick: bool, output: Path, as_json: bool) -> None:
    """Measure this host's engine and trainer and store the profile; raises `ConfigError` first where that cannot be stored."""
    _require_room(output)
    process_environment(Path("runs"), quiet=True)
    console = terminal(stderr=True)
    with json_output(as_json) as emit:
        from libra_core.engines.calibration.calibrate import QUICK, Grid, calibrate

        result = calibrate(QUICK if quick else Grid(), lambda line: console.print(line, highlight=False, soft_wrap=True))
        profile = result.profile
        write_measured(profile, output)
        if not as_json:
            missing = [f"not measured: {part}" for part in result.missing]
            console.print(*_laws(profile), *missing, f"written to {output}", sep="\n", highlight=False, soft_wrap=True)
        emit(profile.stored() | {"missing": list(result.missing)})


def _require_room(output: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=output.parent).close()
    except OSError as error:
        raise ConfigError(f"cannot write the profile {output}: {error}; choose another --output") from None
    if output.is_dir():
        raise ConfigError(f"cannot write the profile {output}: it is a folder; choose another --output")


def _laws(profile: MeasuredProfile) -> list[str]:
    lines = [f"{profile.device}; {', '.join(f'{name} {version}' for name, version in profile.software.items())}"]
    for engine in profile.engines:
        law = engine.law
        lines.append(
            f"engine TP{engine.tp}: step {law.a_s * 1e3:.2f} ms + {law.b_s * 1e6:.1f} us a sequence + "
            f"{law.c_s * 1e9:.1f} ns a token of context; held-out median error {engine.held_out_median_error:.1%}"
        )
    for trainer in profile.trainers:
        lines.append(
            f"trainer TP{trainer.tp} PP{trainer.pp}: micro-batch {trainer.micro_batch_s * 1e3:.2f} ms + "
            f"{trainer.s_per_token * 1e6:.1f} us a token + {trainer.s_per_token2 * 1e9:.1f} ns a squared length, "
            f"step {trainer.step_s * 1e3:.2f} ms; held-out median error {trainer.held_out_median_error:.1%}, "
            f"worst {trainer.held_out_worst_error:.1%}, batch of spread lengths {trainer.batch_error:+.1%}"
        )
    return lines


def _show(report: ValidationReport) -> None:
    table = Table(title=f"{report.device} against {report.file}")
    for column in ("quantity", "rows", "median |error|", "p90 |error|", "median error", "bound", "note"):
        table.add_column(column)
    for item in report.figures:
        bound = "" if item.bound is None else f"{item.bound:.0%} {'kept' if item.within else 'BROKEN'}"
        errors = (f"{value:.1%}" for value in (item.median_abs_error, item.p90_abs_error, item.median_error))
        table.add_row(item.quantity, str(item.rows), *errors, bound, item.note)
    console = terminal()
    console.print(table)
    console.print(f"compared: {report.comparable}", soft_wrap=True)
    for reason, rows in report.left_out.items():
        console.print(f"left out: {rows} rows, {reason}", soft_wrap=True)
