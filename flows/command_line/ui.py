"""The two web interfaces, on loopback."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import typer

from flows.processes.first_start import one_makes_the_database
from libra_core.config.databases import store_of
from libra_core.config.loading import prefect_home, process_environment, server_environment
from libra_core.errors import ResourceError, on_the_disk

HOST = "127.0.0.1"
PREFECT_PORT = 4200
MLFLOW_PORT = 5000
_STOP_S = 15.0
_START_S = 60.0


def show_until_interrupted(root: Path) -> None:
    """Run Prefect's server and MLflow's page over the runs' databases.

    Raises:
        ResourceError: when one of them ends by itself, for example because its port is in use.
    """
    with on_the_disk(root):
        root.mkdir(parents=True, exist_ok=True)
    process_environment(root)
    server_environment(HOST, PREFECT_PORT)
    from libra_core.tracking.mlflow_tracker import make_store  # loads mlflow

    make_store(store_of(root))
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        with one_makes_the_database(prefect_home()):
            children |= {name: subprocess.Popen(command) for name, command in _commands(root).items()}
            _await_prefect(children["Prefect"])
        typer.echo(f"Prefect http://{HOST}:{PREFECT_PORT}   MLflow http://{HOST}:{MLFLOW_PORT}   Ctrl-C ends both", err=True)
        while all(child.poll() is None for child in children.values()):
            time.sleep(0.5)
        ended = ", ".join(name for name, child in children.items() if child.poll() is not None)
        raise ResourceError(f"{ended} ended by itself; is its port in use? (Prefect {PREFECT_PORT}, MLflow {MLFLOW_PORT})")
    finally:
        _stop(list(children.values()))


def _await_prefect(server: subprocess.Popen[bytes]) -> None:
    """Until it answers or ends; not for ever, since a page that is late harms nothing."""
    end_s = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < end_s:
        try:
            return socket.create_connection((HOST, PREFECT_PORT), timeout=1.0).close()
        except OSError:
            time.sleep(0.2)


def _commands(root: Path) -> dict[str, list[str]]:
    return {
        "Prefect": [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(PREFECT_PORT)],
        "MLflow": [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--backend-store-uri", store_of(root), "--host", HOST, "--port", str(MLFLOW_PORT)),
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
