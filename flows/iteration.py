"""One GRPO iteration: rollout, reward, update, publication."""

from prefect import flow, tags

from flows.guard import through_outage
from flows.lifecycle import TrainingRun
from flows.names import iteration_run_name, run_tags, untagged
from libra_core.types.reports import IterationReport
from libra_core.types.session import SessionRef
from tasks.logging import log_iteration
from tasks.reports import assemble_report
from tasks.reward import score_trajectories
from tasks.rollout import generate_trajectories
from tasks.training import publish_weights, update_policy


@flow(name="grpo-iteration", flow_run_name=iteration_run_name, persist_result=False, validate_parameters=False)
def iteration_flow(session: SessionRef, step: int, num_samples: int = 0) -> IterationReport:
    """Learn from one batch of trajectories, while the fleet already works on the next."""
    with untagged():
        return run_iteration(session, step, num_samples)


def run_iteration(session: SessionRef, step: int, num_samples: int = 0) -> IterationReport:
    """The iteration's tasks; called inside any flow."""
    rollout = generate_trajectories(session, step)
    reward = score_trajectories(session, rollout.batch_id)
    update = update_policy(session, rollout.batch_id, expected_version=rollout.policy_version)
    publication = publish_weights(session, update.policy_version)
    report = assemble_report(session, rollout, reward, update, publication)
    log_iteration(session, report, num_samples)
    return report


def iterate(run: TrainingRun, step: int) -> IterationReport:
    """Run the iteration as the configuration wants it, through outages of the Prefect server, and never twice."""
    tracking, orchestration = run.config.tracking, run.config.orchestration
    num_samples = tracking.sample_trajectories if step % tracking.sample_every_steps == 0 else 0
    if orchestration.iteration_as == "inline":
        return run_iteration(run.session, step, num_samples)

    def call() -> IterationReport:
        done = run.recorder.recorded(step)
        if done is not None:
            return done
        with tags(*run_tags(run.config, run.recorder.run_dir.name)):
            return iteration_flow(run.session, step, num_samples)

    return through_outage(call, orchestration.server_outage_s)
