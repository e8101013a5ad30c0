"""The deployments on one host: a long process that starts each run in a process of its own."""

from pathlib import Path

from prefect import serve

from flows.asked_replanning import replan
from flows.comparison import comparison
from flows.logs import a_process_that_is_gone_has_ended
from flows.parameters import ReplanParameters, TrainParameters
from flows.study_parameters import CompareParameters
from flows.training import train

DEPLOYMENT = "libra-train"
STUDY_DEPLOYMENT = "libra-compare"
REPLAN_DEPLOYMENT = "libra-replan"


def serve_training(config: Path) -> None:
    """Trainings, their replanning, and studies. Blocks until interrupted."""
    deployment = train.to_deployment(
        name=DEPLOYMENT,
        parameters={"parameters": TrainParameters(config=str(config)).model_dump()},
        tags=["libra"],
        description="One GRPO training; see docs/operations.md.",
        concurrency_limit=1,
    )
    study = comparison.to_deployment(
        name=STUDY_DEPLOYMENT,
        parameters={"parameters": CompareParameters().model_dump()},
        tags=["libra"],
        description="A simulated study of all systems; see docs/study.md.",
        concurrency_limit=1,
    )
    replan_deployment = replan.to_deployment(
        name=REPLAN_DEPLOYMENT,
        parameters={"parameters": ReplanParameters().model_dump()},
        tags=["libra"],
        description="Replanning of the training that runs; see docs/elasticity.md.",
        concurrency_limit=1,
    )
    a_process_that_is_gone_has_ended()
    serve(deployment, study, replan_deployment, pause_on_shutdown=False, limit=3)
