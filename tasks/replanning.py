"""The steps of a replanning round: profile, propose, decide, apply, record."""

from prefect.artifacts import create_markdown_artifact

from libra_core.planning.decision import PlanComparison
from libra_core.tracking.recorder import recorder_for
from libra_core.types.decision import Decision, ResolvedDecision
from libra_core.types.profile import RunProfile
from libra_core.types.reports import IterationReport
from libra_core.types.session import SessionRef
from tasks.connection import PlanManager, connect
from tasks.options import core_task
from tasks.pictures import publish
from tasks.plan_words import Row, decision_markdown

DECISION_ARTIFACT = "plan-decision"


@core_task(task_run_name="profile-{step:05d}")
def profile_run(session: SessionRef, step: int) -> RunProfile:
    """What the run has measured of itself."""
    return _plan_manager(session).profile(step)


@core_task(task_run_name="propose-{profile.step:05d}")
def propose_moves(session: SessionRef, profile: RunProfile) -> list[PlanComparison]:
    """The plan that runs against each move, under this profile."""
    return _plan_manager(session).propose(profile)


@core_task(task_run_name="decide")
def decide_move(session: SessionRef, comparisons: list[PlanComparison]) -> Decision:
    """The move that pays, or the reason why none does."""
    return _plan_manager(session).decide(comparisons)


@core_task(task_run_name="apply-{decision.step:05d}")
def apply_move(session: SessionRef, decision: Decision) -> None:
    """Begin the transition of a switch; the run goes on meanwhile."""
    _plan_manager(session).apply(decision)


@core_task(task_run_name="record-{decision.step:05d}")
def record_decision(session: SessionRef, decision: Decision, profile: RunProfile) -> None:
    """Into the run's ledger and MLflow, and as a page with both plans."""
    show_decision(recorder_for(session.run_id).record_decision(decision, profile))


def follow_decisions(session: SessionRef, report: IterationReport | None) -> None:
    """Write down what is now known of earlier decisions; None at the run's end. Called after each iteration, so it is no task."""
    for resolved in _plan_manager(session).resolve(report):
        resolve_decision(session, resolved)


@core_task(task_run_name="resolve-{resolved.step:05d}")
def resolve_decision(session: SessionRef, resolved: ResolvedDecision) -> None:
    """Into the run's ledger and MLflow, and, once the move has ended, onto its page."""
    row = recorder_for(session.run_id).record_resolved(resolved)
    if row is not None and resolved.realised is None:
        show_decision(row)


def show_decision(row: Row) -> None:
    """A markdown artifact."""
    text = decision_markdown(row)
    publish(
        f"the decision of step {row['step']}",
        lambda: create_markdown_artifact(key=DECISION_ARTIFACT, markdown=text, description=text.splitlines()[0]),
    )


def _plan_manager(session: SessionRef) -> PlanManager:
    manager = connect(session).planner
    assert manager is not None, "nothing can move in this session"
    return manager
