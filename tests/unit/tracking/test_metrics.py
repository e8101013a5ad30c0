import json
import math
from pathlib import Path

from libra_core.tracking.jsonl import append_metrics, read_metrics
from libra_core.tracking.metrics import METRICS, iteration_metrics, metrics_markdown
from libra_core.types.forecast import ForecastCheck, StepForecast
from support.reports import iteration_report, publication_report, reward_report, update_report

ROOT = Path(__file__).parents[3]


def test_names_are_unique_and_grouped() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert {name.split("/")[0] for name in names} == {
        "iteration",
        "forecast",
        "time",
        "rollout",
        "routing",
        "reward",
        "train",
        "publication",
        "tools",
        "elastic",
    }


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


def test_an_iteration_without_a_forecast_has_no_forecast_metrics() -> None:
    assert not [name for name in iteration_metrics(iteration_report()) if name.startswith("forecast/")]


def test_a_side_without_a_law_is_left_out() -> None:
    forecast = StepForecast(t_train_s=1.5, t_rollout_s=math.nan)
    check = ForecastCheck(forecast=forecast, t_train_error=0.25, t_rollout_error=math.nan)
    metrics = iteration_metrics(iteration_report(forecast=check))
    found = {name: value for name, value in metrics.items() if name.startswith("forecast/")}
    assert found == {"forecast/t_train_s": 1.5, "forecast/t_train_error_fraction": 0.25}


def test_every_kind_of_prompt_has_a_metric_of_its_own_in_any_script() -> None:
    kinds = {"数学": 0.1, "物理": 0.2, "two hop": 0.3, "two-hop": 0.4, "!": 0.5, "x" * 400: 0.6}
    metrics = iteration_metrics(iteration_report(0, reward=reward_report(0, by_kind=kinds)))
    found = {name: value for name, value in metrics.items() if name.startswith("reward/kind_")}
    assert sorted(found.values()) == sorted(kinds.values())
    assert found["reward/kind_数学_mean"] == 0.1
    assert {"reward/kind_two_hop_mean", "reward/kind_two_hop_2_mean"} <= found.keys()
    assert all(len(name) <= 250 for name in found)


def test_rows_of_an_earlier_version_are_read_under_the_names_of_today(tmp_path: Path) -> None:
    append_metrics(tmp_path, 0, {"account/trainer_busy_s": 1.5, "train/loss": 0.5})
    append_metrics(tmp_path, 1, {"time/trainer_busy_s": 2.5})
    assert [row.get("time/trainer_busy_s") for row in read_metrics(tmp_path)] == [1.5, 2.5]
    assert not any(name.startswith("account/") for row in read_metrics(tmp_path) for name in row)
