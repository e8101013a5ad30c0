"""`deployments/slurm.sbatch` stops in time, queues again and goes on from its checkpoint; Slurm, Ray and Libra are stand-ins."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deployments" / "slurm.sbatch"
TRAINS = """#!/bin/bash
echo "$@" >> started
run=runs/slurm-7-20260101-000000-s0
mkdir -p $run/checkpoints
if [ -e ends ]; then exit "$(cat ends)"; fi
for _ in $(seq 1000); do
  if [ -e $run/stop.request ]; then
    mkdir $run/checkpoints/step-000003
    touch $run/checkpoints/step-000003/COMPLETE.json
    exit 75
  fi
  sleep 0.05
done
exit 9
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with the commands that the script calls."""
    programs = {
        "srun": TRAINS,
        "scontrol": '#!/bin/bash\nif [ "$1" = show ]; then echo head; echo other; else echo "$@" >> requeued; fi\n',
        ".venv/bin/libra": '#!/bin/bash\ntouch "$2/stop.request"\nsleep 1\n',
    }
    for name, text in programs.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path


@pytest.fixture
def start(job: Path) -> Iterator[Start]:
    """Runs the script in the folder; whatever a test leaves is ended."""
    begun: list[subprocess.Popen[bytes]] = []
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "head,other"}

    def run(**changes: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PATH": f"{job}:{os.environ['PATH']}", **slurm, **changes}
        command = ["bash", str(SCRIPT), "c.yaml", "--set", "seed=1"]
        begun.append(subprocess.Popen(command, cwd=job, env=environment, start_new_session=True))
        return begun[-1]

    yield run
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until_it_trains(job: Path) -> None:
    end_s = time.monotonic() + 20
    while not list(job.glob("runs/*/checkpoints")):
        assert time.monotonic() < end_s, "the script started nothing within 20 s"
        time.sleep(0.02)


@pytest.mark.parametrize("runs", ["runs", "runs/"])
def test_a_warned_job_stops_with_a_checkpoint_and_its_next_start_resumes(job: Path, start: Start, runs: str) -> None:
    """Also where the training ends while the request to stop is still being made."""
    first = start(LIBRA_RUNS=runs)
    until_it_trains(job)
    first.send_signal(signal.SIGUSR1)
    assert first.wait(60) == 75
    assert (job / "requeued").read_text() == "requeue 7\n"
    (job / "ends").write_text("0")
    assert start(LIBRA_RUNS=runs).wait(60) == 0
    before, after = (job / "started").read_text().splitlines()
    assert before.endswith("--set run.root=runs --set run.name=slurm-7 --set seed=1")
    assert after.endswith("--set run.name=slurm-7 --resume runs/slurm-7-20260101-000000-s0 --set seed=1")


def test_a_failed_job_is_not_queued_again(job: Path, start: Start) -> None:
    (job / "ends").write_text("3")
    assert start().wait(60) == 3
    assert not (job / "requeued").exists()


def test_a_job_that_died_before_its_first_checkpoint_starts_anew(job: Path, start: Start) -> None:
    """A save that was cut off is none."""
    (job / "runs/slurm-7-20260101-000000-s0/checkpoints/step-000003.partial").mkdir(parents=True)
    (job / "ends").write_text("0")
    assert start().wait(60) == 0
    assert "--resume" not in (job / "started").read_text()
