"""The deployment `libra-train` on one host: a long process that starts each run in a process of its own."""

from pathlib import Path

from prefect import serve

from flows.parameters import TrainParameters
from flows.training import train

DEPLOYMENT = "libra-train"


def serve_training(config: Path) -> None:
    """Blocks until interrupted."""
    deployment = train.to_deployment(
        name=DEPLOYMENT,
        parameters={"parameters": TrainParameters(config=str(config)).model_dump()},
        tags=["libra"],
        description="One GRPO training; see docs/operations.md.",
        concurrency_limit=1,
    )
    serve(deployment, pause_on_shutdown=False, limit=2)
