"""Seconds that the warm start of the quickstart takes on this CPU, and on one without AVX-512 and bfloat16 instructions.

    python tests/benchmarks/warm_start.py [--json] [--steps 900] [--repetitions 1]

Each time in a process of its own, in turn, with nothing cached and nothing taken from Libra's own files. The restricted one runs
under `ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2`. `cpu_s` is the processor time, which a busy host changes little: the
warm start uses one thread. The last line of stdout is one JSON object. `ratio` is meant to stay below 1.5.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
RATIO_BOUND = 1.5
ROOT = Path(__file__).parents[2]

MADE = """
import json, sys, tempfile, time
from libra_core.config import load_config
from libra_core.engines.warm_start.ensure import ensure_policy

with tempfile.TemporaryDirectory() as root:
    changes = [f"run.root={root}", *sys.argv[1:]]
    made = ensure_policy(load_config("configs/experiment/quickstart.yaml", changes), lambda name, share: None, take_shipped=False)
print(json.dumps({"wall_s": made.seconds, "cpu_s": time.process_time(), "base": made.base_success, "skill": made.skill_success}))
"""


def main() -> None:
    options = _options()
    changes = [f"model.warm_start.clean_steps={options.steps}"]
    if options.steps < 900:  # too few to have a base success that could be brought anywhere
        changes += ["model.warm_start.base_success_low=0", "model.warm_start.base_success_high=1"]
    rows: dict[str, list[dict[str, Any]]] = {"native": [], "avx2": []}
    for _ in range(options.repetitions):
        for name, environment in (("native", {}), ("avx2", AVX2)):
            rows[name].append(_made(environment, changes))
            print(name, rows[name][-1], file=sys.stderr)
    cpu_s = {name: statistics.median(row["cpu_s"] for row in made) for name, made in rows.items()}
    report = {
        "benchmark": "warm_start",
        "machine": f"{platform.machine()}, {_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "clean_steps": options.steps,
        "runs": rows,
        "cpu_s": cpu_s,
        "ratio": cpu_s["avx2"] / cpu_s["native"],
        "ratio_bound": RATIO_BOUND,
    }
    print(json.dumps(report))


def _made(environment: dict[str, str], changes: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-c", MADE, *changes]
    kept = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, env=kept, cwd=ROOT, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="accepted for the habit; the last line is always JSON")
    parser.add_argument("--steps", type=int, default=900, help="clean_steps; fewer for a quick look")
    parser.add_argument("--repetitions", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
