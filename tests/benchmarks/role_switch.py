"""Seconds of a role switch in a running session, by phase, there and back; and from a replica's death to full service.

    python tests/benchmarks/role_switch.py [--idle-engine sleep|stop] [--repartition] [--json]

The last line of stdout is one JSON object. One core replica, one engine, one hybrid; the embedded policy with random weights;
steps go on meanwhile, so that core, engine and the processes that start share the machine: look at `load`. `--repartition`: one
core replica and two engines that become one of tp 2, and two again.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from libra_core.planning.transition import transition
from libra_core.runtime.driver.session import SessionClients
from libra_core.types.plan import Plan, RolloutLayout
from tests.integration.sessions import iterate, own_processes, random_policy, session, small_config

DEADLINE_S = 400.0


class Steps:
    """Iterations of one session, one after another."""

    def __init__(self, connection: SessionClients) -> None:
        self.connection = connection
        self.done = 0

    def one(self) -> None:
        iterate(self.connection, self.done)
        self.done += 1

    def until(self, ended: Callable[[], Any]) -> int:
        """How many ran meanwhile."""
        first, end_s = self.done, time.monotonic() + DEADLINE_S
        while not ended():
            if time.monotonic() > end_s:
                sys.exit(f"nothing ended within {DEADLINE_S:.0f} s")
            self.one()
        return self.done - first


def switch(steps: Steps, source: Plan, target: Plan) -> dict[str, Any]:
    controller = steps.connection.controller
    controller.begin(transition(source, target))
    meanwhile = steps.until(lambda: controller.outcome() is not None)
    outcome = controller.outcome()
    assert outcome is not None
    if not outcome.applied:
        sys.exit(f"the switch failed: {outcome.error}")
    phases = {verb.value: round(seconds, 3) for verb, seconds in outcome.phases}
    return {"phases_s": phases, "total_s": round(sum(phases.values()), 2), "steps_meanwhile": meanwhile}


def measure(idle_engine: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = small_config(
            random_policy(root / "model"),
            root,
            rollout={"engines": [{"tp": 1, "count": 2}], "max_new_tokens": 64},
            training={"steps": 2000, "loss": {"entropy_coefficient": 0.01}},
            elastic={"hybrid_replicas": 1, "idle_engine": idle_engine},
        )
        with session(config, root / "run") as connection:
            steps, controller = Steps(connection), connection.controller
            serving = controller.plan()
            training = replace(serving, hybrids_training=1)
            steps.one()
            answer = {"to_training": switch(steps, serving, training)}
            steps.one()
            answer["to_serving"] = switch(steps, training, serving)
            switch(steps, serving, training)
            steps.one()
            own_processes("ray::ReplicaActor")[0].kill()
            steps.until(controller.recoveries)
            (recovery,) = controller.recoveries()
            if recovery.serving_s is None:
                sys.exit(f"the replica's GPUs did not come back: {recovery.error}")
            audit = connection.rollout.audit()
    return answer | {
        "death_to_full_service_s": round(recovery.serving_s - recovery.lost_s, 2),
        "trajectories": {"trained": audit.trained, "lost": audit.lost, "doubled": audit.doubled},
        "steps": steps.done,
    }


def measure_repartition() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = small_config(
            random_policy(root / "model"),
            root,
            rollout={"engines": [{"tp": 1, "count": 2}], "max_new_tokens": 64},
            training={"steps": 2000, "loss": {"entropy_coefficient": 0.01}},
            replanning={"repartition": True},
        )
        with session(config, root / "run") as connection:
            steps, two = Steps(connection), connection.controller.plan()
            one = replace(two, rollout=RolloutLayout(engines=((2, 1),)))
            steps.one()
            answer = {"to_tp_2": switch(steps, two, one)}
            steps.one()
            answer["to_tp_1"] = switch(steps, one, two)
            steps.one()
            audit = connection.rollout.audit()
    counts = {"trained": audit.trained, "lost": audit.lost, "doubled": audit.doubled}
    return answer | {"trajectories": counts, "steps": steps.done}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--idle-engine", choices=("sleep", "stop"), default="sleep", help="while the hybrid trains")
    parser.add_argument("--repartition", action="store_true", help="engines of another degree instead of a role switch")
    options = parser.parse_args()
    answer = (measure_repartition() if options.repartition else measure(options.idle_engine)) | {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": [round(value, 1) for value in os.getloadavg()],
    }
    print(json.dumps(answer, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
