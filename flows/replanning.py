"""`replanning`: a look at the plan of a running session, called by the training flow, and asked for by other processes."""

import time
from pathlib import Path

from prefect import flow, get_run_logger, tags
from prefect.events import emit_event

from flows.guard import through_outage
from flows.lifecycle import TrainingRun
from flows.names import replanning_run_name, run_tags, untagged
from libra_core.errors import ConfigError
from libra_core.tracking.decisions import decision_row
from libra_core.types.decision import Decision
from libra_core.types.reports import IterationReport
from libra_core.types.session import SessionRef
from tasks.connection import connect
from tasks.pictures import publish
from tasks.plan_words import decision_line
from tasks.replanning import apply_move, decide_move, follow_decisions, profile_run, propose_moves, record_decision

REQUEST = "replan.request"
"""File in the run folder by which another process asks for a look."""
DROP_EVENT = "libra.throughput.drop"
DROP = 0.6
"""Generated tokens per second below this share of the median of the iterations before are a drop."""


@flow(name="replanning", flow_run_name=replanning_run_name, persist_result=False, validate_parameters=False)
def replanning(session: SessionRef, step: int) -> Decision:
    """Measure, compare, decide, begin what pays, and write it down, also when nothing changes."""
    with untagged():
        profile = profile_run(session, step)
        looks = propose_moves(session, profile)
        decision = decide_move(session, looks)
        apply_move(session, decision)
        record_decision(session, decision, profile)
    return decision


def look_at_plan(run: TrainingRun, report: IterationReport) -> None:
    """Between two iterations: settle earlier decisions, and look again when that is due or asked for."""
    keeper = connect(run.session).planner
    if keeper is None:
        return
    follow_decisions(run.session, report)
    tell_of_drop(run, report)
    request = run.recorder.run_dir / REQUEST
    if not keeper.is_due(report.step, asked=request.exists()):
        return
    started_s = time.monotonic()
    try:
        decision = _look(run, report.step)
    except ConfigError as error:
        get_run_logger().warning("no look at the plan: %s", error)
    else:
        get_run_logger().info("plan, %s", decision_line(decision_row(decision)))
    request.unlink(missing_ok=True)
    run.recorder.add_look(time.monotonic() - started_s)


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


def conclude_decisions(run: TrainingRun) -> None:
    """Realised gains from as many iterations as there were."""
    if connect(run.session).planner is not None:
        follow_decisions(run.session, None)


def ask_for_look(run_dir: Path) -> None:
    """The training flow of this run looks at the plan after its next iteration."""
    (run_dir / REQUEST).touch()


def _look(run: TrainingRun, step: int) -> Decision:
    """Through outages of the Prefect server, and never twice."""
    done: list[Decision] = []

    def call() -> Decision:
        if not done:
            with tags(*run_tags(run.config, run.recorder.run_dir.name)):
                done.append(replanning(run.session, step))
        return done[0]

    return through_outage(call, run.config.orchestration.server_outage_s)
