"""However a training is ended, and in whatever phase: its exit status, its one sentence, its records, and nothing that stays.

The session is a stand-in that leaves what a real one can leave; the process in front, the watcher, Prefect and MLflow are real.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.processes.front import INTERRUPTED
from libra_core.engines.checkpoint_files import FOLDER, PROGRESS, write_marker
from libra_core.runtime.base.remains import shared_memory, temp_folder
from libra_core.tracking.run_folder import read_journal
from support.ends import (
    ROOT,
    Command,
    Ended,
    environment,
    free_port,
    marked,
    mlflow_statuses,
    names,
    new_mark,
    prefect_states,
    stand_in,
    the_work,
    wait_until,
)
from support.prefect_api import served_answer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WITHIN_S = 20.0
GONE_S = 60.0
BUSY = 3.0
"""How much longer than on a quiet host all may take where tests run side by side."""
SIMULATED = "configs/experiment/simulated_48gpu.yaml"
CONFIG = "run: {name: ends}\ntraining: {steps: 2}\nworkload: {heldout_prompts: 2}\norchestration: {iteration_as: inline}\n"


@dataclass(kw_only=True)
class Place:
    """Where one test's runs, databases and processes are."""

    folder: Path
    mark: str = field(default_factory=new_mark)
    commands: list[Command] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.folder / "runs"

    @property
    def home(self) -> Path:
        return self.folder / "prefect"

    def train(self, phase: str, *arguments: str, terminal: bool = False) -> Command:
        """A training that stays in this phase."""
        config = self.folder / "config.yaml"
        config.write_text(CONFIG)
        command = stand_in(phase, "train", str(config), "--set", f"run.root={self.root}", *arguments)
        return self.start(command, terminal=terminal)

    def start(self, command: list[str], *, terminal: bool = False, **env: str) -> Command:
        started = Command(command, environment(self.home, self.mark, **env), terminal=terminal)
        self.commands.append(started)
        return started

    def run_folder(self) -> Path:
        (found,) = [path for path in self.root.iterdir() if path.name.startswith("ends-")]
        return found

    def session(self) -> str:
        """The namespace of the session that the run has open."""
        session = read_journal(self.run_folder()).session
        assert session is not None
        assert shared_memory(session.namespace).exists()
        return session.namespace

    def left_by_a_killed_training(self) -> str:
        """The namespace of a session that nobody closed: its watcher was killed too."""
        command = self.train("iteration")
        command.says("in iteration")
        namespace = self.session()
        command.end()
        assert shared_memory(namespace).exists()
        return namespace

    def checkpoint(self) -> None:
        """A whole one, of which the stand-in reads nothing."""
        folder = self.run_folder() / FOLDER / "step-000001"
        folder.mkdir(parents=True)
        (folder / PROGRESS).write_text("{}")
        write_marker(folder)

    def nothing_is_left_of(self, namespace: str) -> None:
        assert names(marked(self.mark)) == []
        assert not shared_memory(namespace).exists()
        assert not temp_folder(namespace).exists()
        assert not self.run_folder().exists() or read_journal(self.run_folder()).session is None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Prefect keeps, with its tables made: a copy of it spares each test some seconds."""
    home = tmp_path_factory.mktemp("template") / "prefect"
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    subprocess.run(command, env=environment(home, new_mark()), cwd=ROOT, check=True, capture_output=True)
    return home


@pytest.fixture
def place(tmp_path: Path, home: Path) -> Iterator[Place]:
    place = Place(folder=tmp_path)
    shutil.copytree(home, place.home)
    yield place
    for command in place.commands:
        command.end()


def interrupted(ended: Ended) -> None:
    """As documented, and nothing more."""
    assert ended.status == INTERRUPTED, ended.said
    assert len(ended.sentences) == 1, ended.said
    assert ended.sentences[0].startswith("libra: interrupted; ")
    assert "Traceback" not in ended.said
    assert ended.took_s < WITHIN_S * BUSY


def ctrl_c(command: Command) -> None:
    command.press_ctrl_c()


def ctrl_c_twice(command: Command) -> None:
    command.press_ctrl_c()
    command.press_ctrl_c()


def terminate(command: Command) -> None:
    command.send(signal.SIGTERM)


def terminate_group(command: Command) -> None:
    command.send(signal.SIGTERM, group=True)


def close_terminal(command: Command) -> None:
    command.send(signal.SIGHUP, group=True)


@pytest.mark.parametrize(("line", "how"), [("loading libraries", ctrl_c), ("reaching Prefect", terminate_group)])
def test_an_interrupt_before_there_is_a_run_leaves_nothing(place: Place, line: str, how: Callable[[Command], None]) -> None:
    command = place.train("none", terminal=how is ctrl_c)
    command.says(line)
    how(command)
    interrupted(command.ended())
    assert names(marked(place.mark)) == []
    assert not list(place.root.glob("ends-*"))


@pytest.mark.parametrize(
    ("phase", "how"),
    [
        ("opening", ctrl_c),
        ("opening", terminate_group),
        ("iteration", ctrl_c_twice),
        ("iteration", close_terminal),
        ("save", terminate),
        ("held-out", ctrl_c),
    ],
)
def test_an_interrupted_run_is_recorded_and_leaves_nothing(place: Place, phase: str, how: Callable[[Command], None]) -> None:
    command = place.train(phase, terminal=how in (ctrl_c, ctrl_c_twice))
    command.says(f"in {phase}")
    namespace = place.session()
    how(command)
    interrupted(command.ended())
    place.nothing_is_left_of(namespace)
    assert prefect_states(place.home) == {"Cancelled"}
    assert mlflow_statuses(place.root) == ([] if phase == "opening" else ["KILLED"])


def front(command: Command) -> list[int]:
    return [command.process.pid]


def work(command: Command) -> list[int]:
    return [the_work(command)]


def front_and_work(command: Command) -> list[int]:
    return [the_work(command), command.process.pid]


@pytest.mark.parametrize(
    ("phase", "killed", "state"),
    [
        ("opening", work, "Crashed"),
        ("iteration", front, "Cancelled"),
        ("iteration", front_and_work, "Crashed"),
    ],
)
def test_what_a_killed_training_leaves_is_removed_without_help(
    place: Place, phase: str, killed: Callable[[Command], list[int]], state: str
) -> None:
    command = place.train(phase)
    command.says(f"in {phase}")
    namespace = place.session()
    for pid in killed(command):
        command.kill(pid)
    assert command.gone_s() < GONE_S * BUSY
    place.nothing_is_left_of(namespace)
    assert prefect_states(place.home) == {state}
    assert mlflow_statuses(place.root) == ([] if phase == "opening" else ["KILLED"])


def test_a_command_whose_work_was_killed_says_so(place: Place) -> None:
    command = place.train("opening")
    command.says("in opening")
    command.kill(the_work(command))
    ended = command.ended()
    assert ended.status == 128 + signal.SIGKILL
    assert ended.sentences == ["libra: its process was ended by SIGKILL; what it left was removed"]


def test_what_a_killed_training_and_its_watcher_left_is_removed_when_the_run_is_resumed(place: Place) -> None:
    namespace = place.left_by_a_killed_training()
    place.checkpoint()
    resumed = place.train("iteration", "--resume", str(place.run_folder()))
    resumed.says("in iteration")
    assert not shared_memory(namespace).exists()
    assert not temp_folder(namespace).exists()
    assert place.session() != namespace
    resumed.send(signal.SIGINT)
    interrupted(resumed.ended())
    assert mlflow_statuses(place.root) == ["KILLED"]


def test_a_killed_training_that_cannot_go_on_leaves_nothing_either(place: Place) -> None:
    namespace = place.left_by_a_killed_training()
    ended = place.train("iteration", "--resume", str(place.run_folder())).ended()
    assert ended.status == 2
    assert "holds no checkpoint yet" in ended.said
    place.nothing_is_left_of(namespace)
    assert mlflow_statuses(place.root) == ["KILLED"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Served"]:
    """A Prefect server and, beside it, `libra serve`."""
    folder = tmp_path_factory.mktemp("served")
    url = f"http://127.0.0.1:{free_port()}/api"
    mark = new_mark()
    env = environment(folder / "prefect", mark, PREFECT_API_URL=url, PREFECT_RUNNER_POLL_FREQUENCY="1")
    port = url.rpartition(":")[2].removesuffix("/api")
    server = Command([sys.executable, "-m", "prefect", "server", "start", "--port", port], env, terminal=False)
    served = Served(url=url, env=env, folder=folder)
    try:
        wait_until(lambda: served.answers("health"), 120.0, "the Prefect server's start")
        served.start()
        yield served
    finally:
        for command in (served.runner, server):
            if command is not None:
                command.end()


@dataclass(kw_only=True)
class Served:
    """Runs of the deployment, over a simulated cluster."""

    url: str
    env: dict[str, str]
    folder: Path
    runner: Command | None = None

    def start(self) -> None:
        """`libra serve`, until it has its deployment."""
        self.runner = Command([sys.executable, "-m", "flows.cli", "serve", SIMULATED], self.env, terminal=False)
        wait_until(lambda: self.answers("deployments/name/libra-train/libra-train"), 120.0, "the deployment")

    def answers(self, path: str) -> bool:
        try:
            return httpx.get(f"{self.url}/{path}", timeout=5).is_success
        except httpx.TransportError:
            return False

    def run(self, name: str) -> str:
        """Start a training that goes on and wait until it iterates; returns the id of its flow run."""
        slow = ["rollout.groups_per_step=256", "training.steps=500"]
        overrides = [f"run.root={self.folder}/{name}", *slow]
        parameters = {"config": SIMULATED, "overrides": overrides}
        deployment = self.answer("GET", "deployments/name/libra-train/libra-train")["id"]
        body = {"parameters": {"parameters": parameters}, "state": {"type": "SCHEDULED"}}
        flow_run = self.answer("POST", f"deployments/{deployment}/create_flow_run", body)
        wait_until(lambda: list(self.folder.glob(f"{name}/*/metrics.jsonl")), 180.0, "the first iteration")
        return str(flow_run["id"])

    def answer(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return served_answer(method, f"{self.url}/{path}", body)

    def state(self, flow_run: str) -> str:
        return str(self.answer("GET", f"flow_runs/{flow_run}")["state"]["name"])

    def logs_of(self, flow_run: str) -> list[str]:
        asked = {"limit": 200, "logs": {"flow_run_id": {"any_": [flow_run]}}}
        return [log["message"] for log in self.answer("POST", "logs/filter", asked)]

    def process_of(self, flow_run: str) -> Any:
        """The process that executes it."""
        (found,) = [
            process
            for process in marked(self.env["LIBRA_TEST_MARK"])
            if process.environ().get("PREFECT__FLOW_RUN_ID") == flow_run and "prefect.engine" in process.cmdline()
        ]
        return found


def test_a_cancelled_served_run_ends_its_mlflow_run(served: Served) -> None:
    flow_run = served.run("cancelled")
    process = served.process_of(flow_run)
    cancel = [sys.executable, "-m", "prefect", "flow-run", "cancel", flow_run]
    subprocess.run(cancel, env=served.env, cwd=ROOT, check=True, capture_output=True)
    wait_until(lambda: served.state(flow_run) == "Cancelled", WITHIN_S * BUSY, "the run is cancelled")
    assert not process.is_running()
    assert mlflow_statuses(served.folder / "cancelled") == ["KILLED"]


def test_a_killed_served_run_ends_its_mlflow_run_and_its_session(served: Served) -> None:
    flow_run = served.run("killed")
    served.process_of(flow_run).kill()
    wait_until(lambda: served.state(flow_run) == "Crashed", GONE_S * BUSY, "the run is crashed")
    wait_until(lambda: mlflow_statuses(served.folder / "killed") == ["KILLED"], GONE_S * BUSY, "the MLflow run is ended")
    (run_dir,) = (served.folder / "killed").glob("simulated_48gpu-*")
    wait_until(lambda: read_journal(run_dir).session is None, GONE_S * BUSY, "the session is closed")
    # The server's copy of a log comes in parcels, some seconds after its line was written.
    of_hook = "'end_as_killed' finished"
    wait_until(lambda: any(of_hook in message for message in served.logs_of(flow_run)), GONE_S * BUSY, "the hook's last line")
    assert [message for message in served.logs_of(flow_run) if "error was encountered while running hook" in message] == []


def test_libra_serve_ends_quietly_while_a_run_of_it_goes_on(served: Served) -> None:
    flow_run = served.run("left")
    process = served.process_of(flow_run)
    assert served.runner is not None
    served.runner.send(signal.SIGTERM, group=True)
    ended = served.runner.ended()
    assert ended.status == INTERRUPTED, ended.said
    assert "Traceback" not in ended.said, ended.said
    assert ended.took_s <= WITHIN_S * BUSY
    assert not process.is_running()
    wait_until(lambda: mlflow_statuses(served.folder / "left") == ["KILLED"], GONE_S * BUSY, "the MLflow run is ended")
    wait_until(lambda: served.state(flow_run) == "Crashed", GONE_S * BUSY, "the run is crashed")
