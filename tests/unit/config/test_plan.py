"""One reading of a configuration as a plan, wherever it is asked for."""

from pathlib import Path
from typing import Any

from libra_core.config import LibraConfig, plan_of
from libra_core.config.loading import validate_config
from libra_core.planning.example_lengths import LAWS, example_records
from libra_core.planning.loading import load_problem
from libra_core.simulation.backend import SimulatedSession
from libra_core.simulation.study.recorded import RecordedRun
from libra_core.simulation.truth import load_truth
from libra_core.simulation.workload.trajectories import from_records
from libra_core.tracking.labels import run_labels
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout

GROUPS = [{"tp": 4, "count": 2}, {"tp": 8, "count": 1}, {"tp": 4, "count": 1}]
ASKED = Plan(
    train=TrainLayout(tp=4, pp=1, dp=2, micro_batch_tokens=64),
    rollout=RolloutLayout(engines=((4, 3), (8, 1))),
)


def config(**parts: Any) -> LibraConfig:
    return validate_config(
        {
            "backend": {"kind": "simulated"},
            "rollout": {"engines": GROUPS, "groups_per_step": 4, "group_size": 2},
            "training": {"layout": {"tp": 4, "dp": 2}, "micro_batch_tokens": 64, "steps": 4},
            "planner": {"model": "qwen3_14b", "nodes": 4},
            **parts,
        }
    )


def test_engine_groups_of_one_degree_are_one_group_and_the_micro_batch_is_kept() -> None:
    assert plan_of(config()) == ASKED


def test_planner_session_simulator_and_replay_read_the_same_plan(tmp_path: Path) -> None:
    asked = config()
    replayed = RecordedRun(
        config=asked,
        truth=load_truth(asked.simulation.truth),
        work=from_records(example_records(LAWS["r2e_gym"], 64), 2),
        steps=4,
        counted=(1, 3),
        t_iter_s=1.0,
        laws=(),
    )
    assert load_problem(asked).problem.active == ASKED
    assert SimulatedSession(asked, tmp_path).plan() == ASKED
    assert replayed.plan == ASKED
    assert run_labels(asked, Path("r"), "", "").tags["plan.initial"] == "train tp4 pp1 dp2 | rollout tp4x3+tp8x1"
