"""Iterations of a simulated cluster: the ports of a real session in virtual time, strict steps against streamed ones.

`libra train configs/experiment/simulated_48gpu.yaml` does the same through the real flows, `libra compare` for whole systems. The
first run compiles the simulator, which takes most of the time.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from libra_core.config import load_config
from libra_core.simulation.backend import SimulatedSession
from libra_core.types.reports import IterationReport

CONFIG = "configs/experiment/simulated_48gpu.yaml"
WAYS = {
    "strict": ["training.streamed=false", "rollout.age_slack=0"],
    "streamed": ["training.streamed=true", "rollout.age_slack=0"],
    "streamed, one step of slack": ["training.streamed=true", "rollout.age_slack=1"],
}


def run(overrides: Sequence[str], steps: int) -> list[IterationReport]:
    """What `flows/iteration.py` does with a session, without Prefect."""
    config = load_config(CONFIG, [f"training.steps={steps}", *overrides])
    with tempfile.TemporaryDirectory() as folder:
        session = SimulatedSession(config, Path(folder))
        return [_iterate(session, step) for step in range(steps)]


def _iterate(session: SimulatedSession, step: int) -> IterationReport:
    rollout = session.rollout.take_batch(step)
    reward = session.reward.score(rollout.batch_id)
    update = session.trainer.update(rollout.batch_id, rollout.policy_version)
    publication = session.rollout.publish(update.policy_version)
    return session.rollout.iteration_report(step, rollout, reward, update, publication)


def main() -> None:
    for name, overrides in WAYS.items():
        reports = run(overrides, steps=12)[4:]
        mean_s = sum(report.t_iter_s for report in reports) / len(reports)
        waits_s = sum(report.breakdown.trainer_waits_groups_s + report.breakdown.trainer_waits_age_s for report in reports)
        print(f"{name:28} {mean_s:5.0f} s an iteration, {waits_s / len(reports):5.0f} s of it the trainer waits for groups")


if __name__ == "__main__":
    main()
