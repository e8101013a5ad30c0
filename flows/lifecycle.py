"""From a configuration to a running session and back to nothing, whatever happens in between.

Opened in this order and closed in reverse: run folder, with its lock, MLflow experiment, session, MLflow run, recorder.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from prefect import get_run_logger, runtime
from prefect.exceptions import TerminationSignal

from flows.before_start import check_before_start
from flows.guard import closed_undisturbed, kept_sigterm
from flows.planned import planned
from flows.processes.flow_runs import remember_open
from flows.processes.watching import tell_watcher, watch_this_process
from flows.start_report import StartReport
from flows.stopping import forget_stop
from flows.views.artifacts import RunArtifacts
from libra_core.config import LibraConfig
from libra_core.errors import LibraError, on_the_disk
from libra_core.tracking.labels import run_labels
from libra_core.tracking.open import OpenTracker, check_tracker, open_tracker
from libra_core.tracking.planned import keep_plan
from libra_core.tracking.recorder import Recorder, register_recorder
from libra_core.tracking.run_folder import discard_run_folder, read_journal, remember_flow_run, update_journal
from libra_core.tracking.run_owner import owned_run_folder
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
    report = StartReport(Path(config.run.root))
    chosen = planned(config)
    config = chosen.config
    check_before_start(config, report)
    with ExitStack() as stack:
        close_undisturbed = stack.enter_context(closed_undisturbed())
        run_dir = stack.enter_context(owned_run_folder(config))
        _make_known(config, run_dir)
        if config.run.resume is None:
            stack.enter_context(_discarded_on_error(run_dir))
        if chosen.record is not None:
            keep_plan(run_dir, chosen.record)
            get_run_logger().info("%s", chosen.line)
        with on_the_disk(run_dir):
            forget_stop(run_dir)
            flow_run_id = str(runtime.flow_run.id or "")
            if flow_run_id:
                remember_flow_run(run_dir.parent, flow_run_id, run_dir)
        run = _open(config, run_dir, stack, report)
        report.ready()
        status = "FAILED"
        try:
            yield run
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit, TerminationSignal):
            status = "KILLED"
            raise
        finally:
            close_undisturbed()
            flush()
            run.recorder.finish(status)


def _make_known(config: LibraConfig, run_dir: Path) -> None:
    """To whoever ends the run in this process's place."""
    flow_run_id = str(runtime.flow_run.id or "")
    if runtime.deployment.id:
        watch_this_process()
    tell_watcher(run=str(run_dir), root=config.run.root, flow_run=flow_run_id)
    remember_open(flow_run_id)


def _open(config: LibraConfig, run_dir: Path, stack: ExitStack, report: StartReport) -> TrainingRun:
    report("opening MLflow", 0.0)
    if news := check_tracker(config, run_dir):
        get_run_logger().warning(news)
        report(news, 0.0)
    clear_leftovers(run_dir)
    stack.callback(_clear_a_broken_start, run_dir)
    with kept_sigterm():
        session = backend().open_session(config, run_dir, report)
        stack.callback(_close, session, run_dir)
        update_journal(run_dir, session=session)
        first_step = connect(session).trainer.version()
    labels = run_labels(config, run_dir, str(runtime.flow_run.id or ""), flow_run_page())
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


def clear_leftovers(run_dir: Path) -> None:
    """Remove what a killed process of this run left on this host, while the journal still knows it."""
    left = read_journal(run_dir).session
    if left is not None:
        backend().close_session(left)
        update_journal(run_dir, session=None)


def flow_run_page() -> str:
    """Where a browser finds the flow run; empty with a private server, which has no pages."""
    page = str(runtime.flow_run.ui_url or "")
    return page if urlsplit(page).scheme else ""


def _close(session: SessionRef, run_dir: Path) -> None:
    backend().close_session(session)
    _forget_session(run_dir)


def _clear_a_broken_start(run_dir: Path) -> None:
    """An interrupt may come between two steps of a start, where nobody holds yet what was started."""
    try:
        clear_leftovers(run_dir)
    except (OSError, LibraError) as error:
        get_run_logger().warning(f"what was started of {run_dir} may stay: {error}")


def _forget_session(run_dir: Path) -> None:
    """A disk that is full or gone does not keep the rest from being closed; whoever resumes closes a session twice."""
    try:
        update_journal(run_dir, session=None)
    except (OSError, LibraError) as error:
        get_run_logger().warning(f"{run_dir} still names its session: {error}")


@contextmanager
def _discarded_on_error(run_dir: Path) -> Iterator[None]:
    """A refused start leaves no folder. One whose processes had started, and an unexpected error, leave it, with their logs."""
    try:
        yield
    except LibraError as error:
        if error.exit_code == LibraError.exit_code and not any((run_dir / "logs").glob("*")):
            discard_run_folder(run_dir)
        raise
