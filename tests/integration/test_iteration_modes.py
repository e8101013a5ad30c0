"""What each bound promises, on a real engine and a real trainer: versions, the cap of the KV cache, and the account of time."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from libra_core.config import LibraConfig
from libra_core.config.loading import validate_config
from libra_core.types.reports import IterationReport
from tests.integration.sessions import reports_of

pytestmark = pytest.mark.integration

STEPS = 3
NUM_TRAJECTORIES = 16
WIDE_KV = {"hidden_size": 256, "num_layers": 8, "num_heads": 4, "num_kv_heads": 4}
"""16 KiB of KV cache a token, so that the smallest cache, of 16 MiB, holds 1,024 tokens: about 4 of the contexts below."""


def config_of(root: Path, *, streamed: bool = False, tool_wait_s: float = 0.01, **rollout: Any) -> LibraConfig:
    """Contexts of about 250 tokens; tools so quick that under the cap no waiting trajectory loses its prefix to a running one."""
    values: dict[str, Any] = {
        "run": {"root": str(root)},
        "model": {"tiny": WIDE_KV},
        "workload": {
            "kind": "synthetic",
            "prompt_tokens": 160,
            "turn_tokens": 24,
            "turns": 3,
            "tool_tokens": 8,
            "tool_wait_s": tool_wait_s,
            "tool_wait_sigma": 0.5,
        },
        "rollout": {
            "groups_per_step": 4,
            "group_size": NUM_TRAJECTORIES // 4,
            "kv_cache_mib": 16,
            "age_slack": 0,
            "max_turns": 8,
            "max_new_tokens": 160,
            "max_context_tokens": 384,
            **rollout,
        },
        "training": {"steps": STEPS, "streamed": streamed},
        "tracking": {"mlflow_uri": "off"},
        "backend": {"min_free_memory_gib": 3.0},
    }
    return validate_config(values)


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> list[IterationReport]:
    """Without the cap: all 16 trajectories are on the engine at once. They wait for tools long enough to lose their prefix."""
    root = tmp_path_factory.mktemp("synchronous")
    return reports_of(config_of(root, staleness=0, kv_fill=None, tool_wait_s=0.4), root / "run", STEPS)


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> list[IterationReport]:
    """With the cap, and two batches in flight."""
    root = tmp_path_factory.mktemp("streamed")
    return reports_of(config_of(root, staleness=1, kv_fill=0.7, streamed=True), root / "run", STEPS)


def test_without_staleness_each_trajectory_is_generated_wholly_by_the_version_it_trains(
    synchronous: list[IterationReport],
) -> None:
    assert [report.rollout.trajectories for report in synchronous] == [NUM_TRAJECTORIES] * STEPS
    assert [report.rollout.staleness_max for report in synchronous] == [0] * STEPS


def test_with_staleness_one_no_token_is_older_than_one_version(streamed: list[IterationReport]) -> None:
    assert [report.rollout.trajectories for report in streamed] == [NUM_TRAJECTORIES] * STEPS
    assert max(report.rollout.staleness_max for report in streamed) == 1


def test_without_the_cap_requests_are_preempted_and_contexts_computed_again(synchronous: list[IterationReport]) -> None:
    assert all(report.preemptions > 0 for report in synchronous)
    assert sum(report.rollout.reprefilled_tokens for report in synchronous) > 0


def test_under_the_cap_nothing_is_preempted_and_only_swaps_of_weights_cost_contexts(streamed: list[IterationReport]) -> None:
    assert [report.preemptions for report in streamed] == [0] * STEPS
    before_any_swap = streamed[0].rollout
    assert before_any_swap.cached_tokens > 0
    assert before_any_swap.reprefilled_tokens == 0


def test_parts_of_the_account_add_up_and_none_is_negative(
    synchronous: list[IterationReport], streamed: list[IterationReport]
) -> None:
    for report in [*synchronous, *streamed]:
        breakdown = asdict(report.breakdown)
        for side in ("trainer", "fleet"):
            parts = [seconds for name, seconds in breakdown.items() if name.startswith(side)]
            assert sum(parts) == pytest.approx(report.t_iter_s, rel=0.02)
            assert min(parts) > -0.02 * report.t_iter_s, breakdown
        assert breakdown["trainer_busy_s"] > 0.5 * report.update.duration_s
