import json
import math
from pathlib import Path

from libra_core.tracking.metrics import METRICS, iteration_metrics, metrics_markdown
from support.reports import iteration_report, publication_report, reward_report, update_report

ROOT = Path(__file__).parents[3]


def test_names_are_unique_and_grouped() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert {name.split("/")[0] for name in names} == {"iteration", "account", "rollout", "reward", "train", "publication"}


def test_names_that_others_rely_on() -> None:
    wanted = {"iteration/overlap_fraction", "iteration/t_rollout_s", "iteration/t_train_s", "iteration/t_iter_s", "reward/mean"}
    assert wanted <= iteration_metrics(iteration_report()).keys()


def test_values_come_from_the_reports() -> None:
    metrics = iteration_metrics(iteration_report(3, update=update_report(3, loss=-0.5)))
    assert metrics["train/loss"] == -0.5
    assert metrics["rollout/truncated_fraction"] == 0.25
    assert math.isclose(metrics["publication/paused_max_s"], 0.04)


def test_kinds_become_their_own_curves() -> None:
    report = iteration_report(reward=reward_report(by_kind={"heldout/Two Hop": 0.5}))
    assert iteration_metrics(report)["reward/kind_heldout_two_hop_mean"] == 0.5


def test_values_that_are_not_finite_are_left_out() -> None:
    metrics = iteration_metrics(iteration_report(publication=publication_report(canary_max_error=math.nan)))
    assert "publication/canary_max_error_nats" not in metrics
    json.loads(json.dumps(metrics, allow_nan=False))


def test_metrics_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_markdown(), "run `make docs`"
