"""From a configuration to a running session and back to nothing, whatever happens in between.

Opened in this order and closed in reverse: run folder, MLflow experiment, session, MLflow run, recorder.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from prefect import runtime
from prefect.exceptions import TerminationSignal

from flows.artifacts import RunArtifacts
from flows.board import current_board
from flows.guard import kept_sigterm
from flows.stopping import forget_stop
from libra_core.config import LibraConfig
from libra_core.errors import LibraError
from libra_core.tracking.labels import run_labels
from libra_core.tracking.open import OpenTracker, check_tracker, open_tracker
from libra_core.tracking.recorder import Recorder, register_recorder
from libra_core.tracking.run_folder import discard_run_folder, make_run_folder, remember_flow_run, update_journal
from libra_core.tracking.summary import RunPlace
from libra_core.types.session import SessionRef
from tasks.connection import backend, connect
from tasks.pictures import flush


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What the training flow needs at hand."""

    config: LibraConfig
    session: SessionRef
    recorder: Recorder
    artifacts: RunArtifacts
    first_step: int
    place: RunPlace


@contextmanager
def training_run(config: LibraConfig) -> Iterator[TrainingRun]:
    """Everything is closed at the end of the block; the MLflow run ends as FINISHED, FAILED or KILLED.

    Raises:
        LibraError: when something cannot be started; then no run folder is left behind either.
    """
    run_dir = make_run_folder(config)
    forget_stop(run_dir)
    flow_run_id = str(runtime.flow_run.id or "")
    if flow_run_id:
        remember_flow_run(run_dir.parent, flow_run_id, run_dir)
    with ExitStack() as stack:
        if config.run.resume is None:
            stack.enter_context(_discarded_on_error(run_dir))
        run = _open(config, run_dir, stack)
        status = "FAILED"
        try:
            yield run
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit, TerminationSignal):
            status = "KILLED"
            raise
        finally:
            flush()
            run.recorder.finish(status)


def _open(config: LibraConfig, run_dir: Path, stack: ExitStack) -> TrainingRun:
    check_tracker(config)
    with kept_sigterm():
        session = backend().open_session(config, run_dir, current_board().phase)
        stack.callback(_close, session, run_dir)
        update_journal(run_dir, session=session)
        first_step = connect(session).trainer.version()
    labels = run_labels(config, run_dir, str(runtime.flow_run.id or ""), str(runtime.flow_run.ui_url or ""))
    tracker: OpenTracker = open_tracker(config, run_dir, labels)
    recorder = Recorder(run_dir, tracker.tracker, first_step=first_step)
    register_recorder(session.run_id, recorder)
    stack.callback(register_recorder, session.run_id, None)
    return TrainingRun(
        config=config,
        session=session,
        recorder=recorder,
        artifacts=RunArtifacts(run_dir.name, tracker.url),
        first_step=first_step,
        place=RunPlace(run_dir=str(run_dir), mlflow_run_id=tracker.run_id, mlflow_url=tracker.url),
    )


def _close(session: SessionRef, run_dir: Path) -> None:
    backend().close_session(session)
    if run_dir.exists():
        update_journal(run_dir, session=None)


@contextmanager
def _discarded_on_error(run_dir: Path) -> Iterator[None]:
    """A refused start leaves no folder; an unexpected error leaves it, with its logs."""
    try:
        yield
    except LibraError as error:
        if error.exit_code == LibraError.exit_code:
            discard_run_folder(run_dir)
        raise
