"""What Prefect costs per iteration: the iteration as a subflow with its tasks and artifacts, against the same calls alone.

Both variants answer at once (no engines, no trainer) and write the same metrics, so their difference is Prefect. Run:
`python tests/benchmarks/orchestration.py --json`. Uses the configured Prefect server, else a private one.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from libra_core.config import LibraConfig
from libra_core.config.loading import process_environment
from libra_core.types.session import SessionRef


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        process_environment(Path(root), quiet=True)
        print(json.dumps(measure(Path(root), arguments.iterations), indent=None if arguments.json else 2))


def measure(root: Path, iterations: int) -> dict[str, Any]:
    """Seconds per iteration of both variants, alternating, so that other load hits both alike."""
    from prefect import flow
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.iteration import iteration_flow
    from flows.processes.server import ensure_server
    from libra_core.tracking.recorder import NullTracker, Recorder, register_recorder
    from libra_core.tracking.run_folder import Journal, write_journal
    from support.session import FakeBackend
    from tasks.connection import using

    ensure_server()
    backend = FakeBackend()
    session = backend.open_session(LibraConfig(), root, lambda name, fraction: None)
    write_journal(root, Journal())
    register_recorder(session.run_id, Recorder(root, NullTracker()))

    @flow(name="orchestration-benchmark")
    def benchmark() -> tuple[list[float], list[float]]:
        with_prefect, without = [], []
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            iteration_flow(session, 0)
            for step in range(1, iterations + 1):
                with_prefect.append(_timed(lambda step=step: iteration_flow(session, step)))
                without.append(_timed(lambda step=step: plain_iteration(session, step)))
        return with_prefect, without

    with using(backend):
        with_prefect, without = benchmark()
    costs = [a - b for a, b in zip(with_prefect, without, strict=True)]
    return {
        "prefect_s_per_iteration": round(median(costs), 4),
        "prefect_s_mean": round(fmean(costs), 4),
        "prefect_s_max": round(max(costs), 4),
        "without_prefect_s": round(median(without), 4),
        "iterations": iterations,
        "server": PREFECT_API_URL.value() or "private",
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
    }


def plain_iteration(session: SessionRef, step: int) -> None:
    """The same calls and records without Prefect."""
    from libra_core.tracking.metrics import iteration_metrics
    from libra_core.tracking.recorder import recorder_for
    from tasks.connection import connect

    clients = connect(session)
    rollout = clients.rollout.take_batch(step)
    reward = clients.reward.score(rollout.batch_id)
    update = clients.trainer.update(rollout.batch_id, rollout.policy_version)
    publication = clients.rollout.publish(update.policy_version)
    report = clients.rollout.iteration_report(step, rollout, reward, update, publication)
    recorder_for(session.run_id).record(report)
    iteration_metrics(report)


def _timed(call: Any) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main()
