"""What the command line does once its arguments are understood. Heavy libraries are imported as late as possible."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from flows.before_start import check_before_start
from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from flows.parameters import TrainParameters
from flows.planned import planned
from flows.stopping import STOPPED
from flows.views.board import put_up
from flows.views.console import BarBoard, PlainBoard, make_board, summary_table, where_to_read
from flows.views.start_pace import keep_times, read_times
from libra_core.config import load_config
from libra_core.config.loading import process_environment
from libra_core.errors import ConfigError, NumericsError


def run_training(parameters: TrainParameters, *, as_json: bool) -> int:
    """Returns the exit status; raises `LibraError` and `KeyboardInterrupt` after everything is closed."""
    chosen = planned(parameters.load(), parameters.config)
    config = chosen.config
    with json_output(as_json) as emit:
        if chosen.line:
            terminal(stderr=True).print(chosen.line, highlight=False, soft_wrap=True)
        with _board(Path(config.run.root)) as board:
            check_before_start(config, board.phase)
            process_environment(Path(config.run.root), quiet=True)
            board.phase("loading libraries", 0.0)
            from prefect import tags

            from flows.logs import leave_errors_to_the_command_line
            from flows.processes.flow_runs import cancelled_when_interrupted
            from flows.processes.server import ensure_server, reasons_of_refusals
            from flows.training import train

            board.phase("reaching Prefect", 0.0)
            ensure_server()
            leave_errors_to_the_command_line()
            with (
                reasons_of_refusals(),
                cancelled_when_interrupted(),
                tags("libra", config.workload.kind, config.tracking.baseline),
            ):
                summary = train(parameters)
        if not as_json:
            console = terminal()
            console.print(summary_table(summary))
            console.print(*where_to_read(summary), sep="\n", highlight=False, soft_wrap=True)
        emit(summary.as_json())
    return STOPPED if summary.stopped_early else 0


def run_warm_start(config_path: Path, overrides: list[str], *, as_json: bool, write_package: bool = False) -> None:
    """Make or find the embedded policy and say where it lies; `write_package` makes it and puts it among Libra's own files."""
    config = load_config(config_path, overrides)
    if config.model.path is not None:
        raise ConfigError(
            f"model.path = {config.model.path!r} needs no warm start; it makes the embedded policy of a run without model.path"
        )
    process_environment(Path(config.run.root), quiet=True)
    with json_output(as_json) as emit:
        with _board(Path(config.run.root)) as board:
            from libra_core.engines.warm_start.ensure import ensure_policy
            from libra_core.engines.warm_start.shipped import write_shipped

            made = ensure_policy(config, board.phase, take_shipped=not write_package)
            result = asdict(made) | (write_shipped(config, made) if write_package else {})
        facts = {name: str(value) if isinstance(value, Path) else value for name, value in result.items()}
        if not as_json:
            terminal().print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n", highlight=False, soft_wrap=True)
        emit(facts)


def run_serve(config_path: Path) -> None:
    """Serve the deployment `libra-train`; each run is a process of its own, one at a time.

    Raises:
        KeyboardInterrupt: at its end; Prefect closes the runs and says nothing of it.
    """
    config = load_config(config_path)
    process_environment(Path(config.run.root))
    from flows.deployment import serve_training
    from flows.processes.server import require_server

    require_server()
    # This handler alone is replaced by asyncio's own, which lets the runner's tasks end in order.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    serve_training(config_path)
    raise KeyboardInterrupt


def run_verify_numerics(*, as_json: bool) -> None:
    """Raises `NumericsError` when a bound is broken."""
    process_environment(Path("runs"), quiet=True)
    with json_output(as_json) as emit:
        with _board() as board:
            from libra_core.engines.verification.numerics import run_numerics

            figures = run_numerics(lambda check: board.phase(check, 0.0))
        if not as_json:
            terminal().print_json(data=figures)
        emit(figures)
        if not figures["passed"]:
            raise NumericsError(
                "a figure of `libra verify numerics` is outside its bound; compare it with `bounds` in the output"
            )


@contextmanager
def _board(root: Path | None = None) -> Iterator[PlainBoard | BarBoard]:
    """Where the run root is known, with how long each phase took the last time."""
    with make_board(terminal(stderr=True), read_times(root) if root else None) as board:
        put_up(board)
        yield board
        if root is not None:
            keep_times(root, board.pace.times)
