"""A whole session routed by the prefix tree over engines of TP 1 and TP 2, and its resumption."""

from pathlib import Path
from typing import Any

import pytest

from libra_core.config import LibraConfig
from libra_core.config.loading import validate_config
from libra_core.routing.tree_file import load_tree
from libra_core.runtime.driver.session import SessionClients
from libra_core.runtime.rollout.router import tree_path
from libra_core.tracking.metrics import iteration_metrics
from tests.integration.sessions import session

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]


def config_of(root: Path, kv_transfer: str = "off", **run: Any) -> LibraConfig:
    """Most trajectories pass 20 tokens, so once lengths are known they belong on the larger engine."""
    return validate_config(
        {
            "run": {"root": str(root), **run},
            "workload": {"kind": "synthetic", "turn_tokens": 16, "turns": 4, "tool_tokens": 8, "tool_wait_s": 0.1},
            "rollout": {
                "engines": [{"tp": 1}, {"tp": 2}],
                "groups_per_step": 4,
                "group_size": 4,
                "max_turns": 8,
                "max_new_tokens": 160,
                "max_context_tokens": 320,
                "engine_start_deadline_s": 600.0,
                "kv_transfer": kv_transfer,
            },
            "routing": {"policy": "mean_p90", "limits_tokens": [20]},
            "training": {"steps": 8},
            "tracking": {"mlflow_uri": "off"},
            "backend": {"min_free_memory_gib": 3.0},
        }
    )


def run_step(connection: SessionClients, step: int) -> dict[str, float]:
    rollout = connection.rollout.take_batch(step)
    reward = connection.reward.score(rollout.batch_id)
    update = connection.trainer.update(rollout.batch_id, rollout.policy_version)
    publication = connection.rollout.publish(update.policy_version)
    found = iteration_metrics(connection.rollout.iteration_report(step, rollout, reward, update, publication))
    print("ROUTING", {name: value for name, value in found.items() if name.startswith("routing/")})
    return found


def test_trajectories_move_by_what_others_taught_and_a_resumed_run_knows_it(tmp_path: Path) -> None:
    first = tmp_path / "run"
    with session(config_of(tmp_path), first) as connection:
        metrics = [run_step(connection, step) for step in range(3)]
        connection.trainer.save(3)
    assert sum(row["routing/moves"] for row in metrics) > 0
    assert sum(row["routing/reprefill_s"] for row in metrics) > 0
    assert sum(row["routing/handed_over_tokens"] for row in metrics) == 0
    assert metrics[-1]["routing/decision_p50_us"] > 0
    assert 0 < metrics[-1]["routing/accuracy"] <= 1
    known = load_tree(tree_path(first)).learnt
    assert known >= 48

    second = tmp_path / "second"
    with session(config_of(tmp_path, kv_transfer="shared_folder", resume=str(first)), second) as connection:
        metrics = [run_step(connection, step) for step in (3, 4)]
    assert sum(row["routing/handed_over_tokens"] for row in metrics) > 0
    assert sum(row["routing/handover_s"] for row in metrics) > 0
    assert not list(Path("/dev/shm").glob("libra-second-*")), "handed-over KV goes with the run"
    assert load_tree(tree_path(second)).learnt > known
