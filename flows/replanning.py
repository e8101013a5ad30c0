"""`replanning`: a round over the plan of a running session, called by the training flow, and asked for by other processes."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from threading import Thread

from prefect import flow, get_run_logger, tags
from prefect.events import emit_event

from flows.guard import through_outage
from flows.lifecycle import TrainingRun
from flows.names import replanning_run_name, run_tags, untagged
from libra_core.errors import ConfigError, DeadlineError, on_the_disk
from libra_core.tracking.decisions import decision_row
from libra_core.types.decision import Decision
from libra_core.types.reports import IterationReport
from libra_core.types.session import SessionRef
from tasks.connection import connect
from tasks.pictures import publish
from tasks.plan_words import decision_line
from tasks.replanning import apply_move, decide_move, follow_decisions, profile_run, propose_moves, record_decision

REQUEST = "replan.request"
"""File in the run folder by which another process asks for a round."""
DROP_EVENT = "libra.throughput.drop"
_ROUND_DEADLINE_S = 60.0
"""Of a round while Prefect's server answers; one takes well under a second."""
DROP = 0.6
"""Generated tokens per second below this share of the median of the iterations before are a drop."""


@flow(name="replanning", flow_run_name=replanning_run_name, persist_result=False, validate_parameters=False)
def replanning(session: SessionRef, step: int) -> Decision:
    """Measure, compare, decide, begin what pays, and write it down, also when nothing changes."""
    with untagged():
        profile = profile_run(session, step)
        comparisons = propose_moves(session, profile)
        decision = decide_move(session, comparisons)
        apply_move(session, decision)
        record_decision(session, decision, profile)
    return decision


class ReplanningRounds:
    """What follows each iteration of one training beside the next: resolving earlier decisions, and a round when it is due.

    Owned by the training flow. A thread does it, one at a time, and alone changes the plan manager meanwhile: `after` and
    `conclude` wait for the one before. One that outlives the training is abandoned with its process.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._under_way: Future[None] | None = None

    def after(self, report: IterationReport) -> None:
        """Resolve earlier decisions, and replan when that is due or asked for."""
        if connect(self._run.session).planner is not None:
            with self._counted():
                self._wait()
                self._begin(report)

    def rest(self) -> None:
        """Return once nothing is under way, for a checkpoint; what the last one raised waits for `after` or `conclude`."""
        if self._under_way is not None:
            with self._counted():
                wait([self._under_way], self._deadline_s)

    def conclude(self) -> None:
        """Realised gains from as many iterations as there were."""
        if connect(self._run.session).planner is not None:
            with self._counted():
                self._wait()
                follow_decisions(self._run.session, None)

    def _begin(self, report: IterationReport) -> None:
        """In a copy of this thread's context, so that Prefect sees a subflow of the training."""
        done: Future[None] = Future()
        self._under_way = done
        context = copy_context()

        def follow() -> None:
            try:
                context.run(_follow, self._run, report)
            except BaseException as error:  # whoever waits gets it
                done.set_exception(error)
            else:
                done.set_result(None)

        name = f"replanning-{report.step}"
        Thread(target=follow, name=name, daemon=True).start()  # failure: `_wait` raises it

    def _wait(self) -> None:
        """Raises what the round raised, or `DeadlineError`."""
        done, self._under_way = self._under_way, None
        if done is None:
            return
        if wait([done], self._deadline_s).not_done:
            raise DeadlineError(
                f"the training waited {self._deadline_s:.0f} s (orchestration.server_outage_s and {_ROUND_DEADLINE_S:.0f} s) for "
                "its replanning round; see the run folder's logs, resume the run, or set replanning.every_steps=0"
            )
        done.result(0)

    @property
    def _deadline_s(self) -> float:
        return self._run.config.orchestration.server_outage_s + _ROUND_DEADLINE_S

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """What replanning keeps the training."""
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._run.recorder.add_replanning(time.monotonic() - started_s)


def _follow(run: TrainingRun, report: IterationReport) -> None:
    manager = connect(run.session).planner
    assert manager is not None
    follow_decisions(run.session, report)
    tell_of_drop(run, report)
    if manager.is_due(report.step, asked=_request(run).exists()):
        _replan_and_log(run, report.step)


def _replan_and_log(run: TrainingRun, step: int) -> None:
    try:
        decision = _replan(run, step)
    except ConfigError as error:
        get_run_logger().warning("no replanning round: %s", error)
    else:
        get_run_logger().info("plan, %s", decision_line(decision_row(decision)))
    _request(run).unlink(missing_ok=True)


def tell_of_drop(run: TrainingRun, report: IterationReport) -> None:
    """An event for automations, such as the trigger of the deployment `libra-replan`."""
    usual = run.recorder.usual_tokens_per_s(before=report.step)
    if usual is not None and report.tokens_per_s < DROP * usual:
        publish(
            f"the drop of throughput in step {report.step}",
            lambda: emit_event(
                event=DROP_EVENT,
                resource={"prefect.resource.id": f"libra.run.{run.recorder.run_dir.name}"},
                payload={"step": report.step, "tokens_per_s": report.tokens_per_s, "usual_tokens_per_s": usual},
            ),
        )


def ask_for_replanning(run_dir: Path) -> None:
    """The training flow of this run replans after its next iteration."""
    with on_the_disk(run_dir):
        (run_dir / REQUEST).touch()


def _request(run: TrainingRun) -> Path:
    return run.recorder.run_dir / REQUEST


def _replan(run: TrainingRun, step: int) -> Decision:
    """Through outages of the Prefect server, and never twice."""
    done: list[Decision] = []

    def call() -> Decision:
        if not done:
            with tags(*run_tags(run.config, run.recorder.run_dir.name)):
                done.append(replanning(run.session, step))
        return done[0]

    return through_outage(call, run.config.orchestration.server_outage_s)
