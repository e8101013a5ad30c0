"""`libra-train`: the whole run."""

from dataclasses import asdict, replace

from prefect import flow, get_run_logger
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows.guard import heard_interrupts
from flows.hooks import end_as
from flows.iteration import iterate
from flows.lifecycle import TrainingRun, training_run
from flows.logs import in_one_sentence
from flows.names import training_run_name, untagged
from flows.parameters import TrainParameters
from flows.replanning import ReplanningRounds
from flows.stopping import asked_to_stop
from flows.views.board import current_board, iteration_line
from libra_core.errors import NumericsError
from libra_core.tracking.summary import RunSummary
from libra_core.types.reports import IterationReport
from tasks.connection import connect
from tasks.training import save_checkpoint


@flow(
    name="libra-train",
    flow_run_name=training_run_name,
    persist_result=False,
    on_cancellation=[end_as("KILLED")],
    on_failure=[end_as("FAILED")],
    on_crashed=[end_as("KILLED")],
)
def train(parameters: TrainParameters) -> RunSummary:
    """Iterate until `training.steps`, with checkpoints, then score held-out prompts. `libra stop` ends it early."""
    in_one_sentence()
    settings = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    with untagged(), settings, training_run(parameters.load()) as run, heard_interrupts() as raise_if_interrupted:
        total, rounds = run.config.training.steps, ReplanningRounds(run)
        for step in range(run.first_step, total):
            report = iterate(run, step)
            show(run, report)
            raise_if_interrupted()
            stops = step + 1 < total and asked_to_stop(run.recorder.run_dir)
            if stops or checkpoint_due(step + 1, total, run.config.training.checkpoint.every_steps):
                rounds.rest()
                save_checkpoint(run.session, step + 1)
            rounds.after(report)
            if stops:
                rounds.conclude()
                return conclude_early(run)
        rounds.conclude()
        return conclude(run)


def checkpoint_due(finished: int, total: int, every: int) -> bool:
    """After the last iteration always; before it every `every` ones, and never when `every` is 0."""
    return finished == total or (every > 0 and finished % every == 0)


def show(run: TrainingRun, report: IterationReport) -> None:
    """Tell those who watch: log, progress artifact, terminal, trace."""
    total = run.config.training.steps
    get_run_logger().info(iteration_line(report, total))
    run.artifacts.progress((report.step + 1) / total)
    current_board().iteration(report, total)
    run.recorder.add_trace(connect(run.session).rollout.spans)


def conclude(run: TrainingRun) -> RunSummary:
    """Score held-out prompts with the final weights and sum the run up. Raises `NumericsError`."""
    rollout = connect(run.session).rollout
    return sum_up(run, rollout.evaluate_heldout() if run.config.workload.heldout_prompts else {})


def conclude_early(run: TrainingRun) -> RunSummary:
    """The run so far, at once: whoever asks for a stop may be about to end the process. MLflow shows it as KILLED."""
    summary = replace(sum_up(run, {}), stopped_early=True)
    run.recorder.finish("KILLED")
    return summary


def sum_up(run: TrainingRun, heldout: dict[str, float]) -> RunSummary:
    """Raises `NumericsError` when a trajectory that was given to the trainer is in no gradient, or in two."""
    audit = connect(run.session).rollout.audit()
    summary = run.recorder.summary(heldout, run.place, asdict(audit))
    if audit.lost or audit.doubled:
        raise NumericsError(
            f"{audit.lost} trajectories of this run are in no gradient and {audit.doubled} in more than one, out of "
            f"{audit.trained} that were trained; look into {run.place.run_dir}"
        )
    return summary
