"""The two web interfaces, on loopback."""

import subprocess
import sys
import time
from pathlib import Path

import typer

from libra_core.config.loading import process_environment, server_environment
from libra_core.errors import ResourceError

HOST = "127.0.0.1"
PREFECT_PORT = 4200
MLFLOW_PORT = 5000
_STOP_S = 15.0


def show_until_interrupted(root: Path) -> None:
    """Run Prefect's server and MLflow's page over the runs' databases.

    Raises:
        ResourceError: when one of them ends by itself, for example because its port is in use.
    """
    root.mkdir(parents=True, exist_ok=True)
    process_environment(root)
    server_environment(HOST, PREFECT_PORT)
    children = {name: subprocess.Popen(command) for name, command in _commands(root).items()}
    typer.echo(f"Prefect http://{HOST}:{PREFECT_PORT}   MLflow http://{HOST}:{MLFLOW_PORT}   Ctrl-C ends both", err=True)
    try:
        while all(child.poll() is None for child in children.values()):
            time.sleep(0.5)
        ended = ", ".join(name for name, child in children.items() if child.poll() is not None)
        raise ResourceError(f"{ended} ended by itself; is its port in use? (Prefect {PREFECT_PORT}, MLflow {MLFLOW_PORT})")
    finally:
        _stop(list(children.values()))


def _commands(root: Path) -> dict[str, list[str]]:
    store = f"sqlite:///{(root / 'mlflow.db').resolve()}"
    return {
        "Prefect": [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(PREFECT_PORT)],
        "MLflow": [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--backend-store-uri", store, "--host", HOST, "--port", str(MLFLOW_PORT)),
        ],
    }


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
