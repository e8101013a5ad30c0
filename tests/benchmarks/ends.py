"""Seconds from Ctrl-C to the prompt, and from SIGKILL until nothing is left, in each phase of a real training.

    python tests/benchmarks/ends.py --json [--phase engines ...]

Starts one training of the quickstart a figure, in a terminal of its own, and ends it when its progress names the phase.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.ends import Command, environment, marked, mlflow_statuses, names, new_mark, prefect_states, the_work

STEPS = 3
PHASES = {
    "libraries": "loading libraries",
    "prefect": "reaching Prefect",
    "warm start": "teaching to search",
    "ray": "starting Ray",
    "trainer": "starting the trainer",
    "engines": "starting the engines",
    "publication": "publishing the first weights",
    "iteration": "iterations ",
}
"""Name of a phase, and what the training says when it begins, or, of an iteration, when the first one is done."""
OVERRIDES = {"warm start": ["model.warm_start.seed=7"]}
"""What brings a phase about: the policy of the default comes with Libra and is not taught."""
FILES = {"save": "*/checkpoints/*.partial", "held-out": f"*/checkpoints/step-{STEPS:06d}"}
"""Name of a phase that says nothing, and the file under `run.root` that exists from its beginning."""
ROOT = Path(__file__).parents[2]
_START_S = 600.0


def measure(phase: str, end: Callable[[Command], None], overrides: list[str]) -> dict[str, Any]:
    """One training, ended in this phase."""
    with tempfile.TemporaryDirectory(prefix="libra-ends-") as folder:
        root, home = Path(folder) / "runs", Path(folder) / "prefect"
        sets = [f"run.root={root}", f"training.steps={STEPS if phase in FILES else 1000}"]
        sets += [*OVERRIDES.get(phase, []), *overrides]
        arguments = [word for value in sets for word in ("--set", value)]
        command = [sys.executable, "-m", "flows.cli", "train", "configs/experiment/quickstart.yaml", *arguments]
        shared, temporary = set(os.listdir("/dev/shm")), set(os.listdir("/tmp"))
        run = Command(command, environment(home, new_mark()), terminal=True)
        try:
            if phase in FILES:
                _see(run, root, phase)
            else:
                run.says(PHASES[phase], _START_S)
            end(run)
            ended = run.ended()
            gone_s = run.gone_s()
        finally:
            run.end()
        return {
            "status": ended.status,
            "sentences": ended.sentences,
            "to_prompt_s": round(ended.took_s, 1),
            "to_nothing_left_s": round(gone_s, 1),
            "processes": names(marked(run.mark)),
            "shared_memory": sorted(set(os.listdir("/dev/shm")) - shared),
            "temporary": sorted(set(os.listdir("/tmp")) - temporary - {Path(folder).name}),
            "prefect": sorted(prefect_states(home)),
            "mlflow": mlflow_statuses(root),
        }


def _see(run: Command, root: Path, phase: str) -> None:
    """A save of the small policy is over within tenths of a second."""
    end_s = time.monotonic() + _START_S
    while not list(root.glob(FILES[phase])):
        assert run.process.poll() is None, f"the training ended, and {phase} was not seen"
        assert time.monotonic() < end_s, f"{phase} has not begun within {_START_S:.0f} s"
        time.sleep(0.002)


def ctrl_c(run: Command) -> None:
    run.press_ctrl_c()


def kill_the_work(run: Command) -> None:
    run.kill(the_work(run))


def kill_both(run: Command) -> None:
    for pid in (the_work(run), run.process.pid):
        run.kill(pid)


ENDS = {"ctrl_c": ctrl_c, "kill": kill_the_work, "kill_both": kill_both}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--phase", action="append", choices=[*PHASES, *FILES], help="Only this one. Repeatable.")
    parser.add_argument("--end", action="append", choices=sorted(ENDS), help="Only this one. Repeatable.")
    parser.add_argument("--set", action="append", default=[], help="Change a value of the run. Repeatable.")
    parser.add_argument("--json", action="store_true", help="End stdout with one JSON object.")
    asked = parser.parse_args()
    figures: dict[str, Any] = {}
    for phase in asked.phase or (*PHASES, *FILES):
        for end in asked.end or ("ctrl_c", "kill"):
            figures[f"{phase}/{end}"] = figure = measure(phase, ENDS[end], asked.set)
            print(f"{phase:12s} {end:10s} {json.dumps(figure)}", file=sys.stderr, flush=True)
    if asked.json:
        print(json.dumps({"machine": f"{platform.node()}, {os.cpu_count()} CPUs", "ends": figures}))


if __name__ == "__main__":
    main()
