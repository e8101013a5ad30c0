"""Where the time of trainer and engines went, in every system of the study."""

from pathlib import Path

import pytest

from libra_core.simulation.study.config import load_study, load_systems
from libra_core.simulation.study.run import run_system
from libra_core.simulation.study.summary import SimulatedSummary
from libra_core.simulation.workload.laws import load_law

STUDY = Path("configs/study/48gpu.yaml")


def shares(summary: SimulatedSummary) -> tuple[float, float]:
    """Of the trainer's time and of the fleet's."""
    trainer = summary.trainer_busy + summary.trainer_waits_groups + summary.trainer_waits_age + summary.trainer_blocked
    fleet = summary.fleet_decode + summary.fleet_prefill + summary.fleet_reprefill
    return trainer, fleet + summary.fleet_paused + summary.fleet_starved


def require_breakdowns_that_add_up(*, staleness: int) -> None:
    study = load_study(STUDY, steps=12, seeds=1, groups_per_step=6, staleness=staleness, gpus=16)
    law = load_law(study.path("workloads/r2e_gym.yaml"))
    off: dict[str, tuple[float, float]] = {}
    for name, system in load_systems(study).items():
        summary = run_system(study, name, system, law, 0).summary
        if shares(summary) != (pytest.approx(1.0, abs=1e-6), pytest.approx(1.0, abs=1e-6)):
            off[name] = shares(summary)
        assert 0.0 <= summary.wasted <= summary.wasted + summary.idle <= 1.0 + 1e-6, name
    assert off == {}
