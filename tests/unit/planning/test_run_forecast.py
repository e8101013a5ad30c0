"""The forecast of a running run: from the batches before, by the laws, uncorrected."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from libra_core.config import LibraConfig
from libra_core.config.model import ModelConfig
from libra_core.config.planner import PlannerConfig
from libra_core.costs.api import EngineLimits, load_model
from libra_core.costs.measured import PROFILE_VERSION, EngineLawFit, MeasuredProfile, write_measured
from libra_core.costs.measured_training import TrainerLawFit
from libra_core.errors import CheckpointError
from libra_core.planning.run_forecast import (
    ForecastHistory,
    GeneratedBatch,
    RunForecaster,
    RunLaws,
    TrainedBatch,
    forecast_rollout_s,
    forecast_train_s,
)
from libra_core.planning.run_laws import load_run_laws
from libra_core.types.laws import EngineLaw
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from libra_core.types.reports import IterationReport
from support.laws import trainer_law
from support.reports import iteration_report, rollout_report, update_report

STEP = EngineLaw(a_s=0.01, b_s=0.001, c_s=0.0, prefill_b_s_per_token=0.0, kv_tokens=4096)
LIMITS = EngineLimits(kv_tokens=1e6, max_num_seqs=128)
FLEET = RunLaws(engines=((STEP, LIMITS),), num_engines=1)
PLAN = Plan(train=TrainLayout(), rollout=RolloutLayout(engines=((1, 1),)))
BATCH = GeneratedBatch(
    trajectories=8,
    prompt_tokens=160,
    generated_tokens=400,
    tool_tokens=100,
    turns=16,
    longest_generated_tokens=80,
    longest_tool_s=0.5,
)
TRAINER = trainer_law(s_per_token2=1e-8)
HF_CONFIG = """{"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128, "head_dim": 32,
"num_hidden_layers": 4, "intermediate_size": 384, "vocab_size": 1024, "tie_word_embeddings": true,
"max_position_embeddings": 512}"""


def fleet_only(half_life_steps: float = 10.0, last_full_step: int = 100) -> RunForecaster:
    return RunForecaster(FLEET, half_life_steps=half_life_steps, last_full_step=last_full_step)


def iteration(step: int, *, generated_tokens: int = 400, t_rollout_s: float = 1.8) -> IterationReport:
    return iteration_report(step, rollout=rollout_report(step, generated_tokens=generated_tokens), t_rollout_s=t_rollout_s)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(HF_CONFIG)
    return tmp_path


def measured_profile(
    file: Path, *, hidden: int = 128, trainers: tuple[TrainerLawFit, ...] = (), software: dict[str, str] | None = None
) -> str:
    law = EngineLawFit(tp=1, law=STEP, held_out_median_error=0.03, num_cells=15)
    profile = MeasuredProfile(
        version=PROFILE_VERSION,
        host="here",
        device="",
        model=f"embedded policy, hidden {hidden}, 4 layers, float32",
        measured_on="",
        clock="cpu",
        software=software or {},
        engines=(law,),
        trainers=trainers,
        max_context_tokens=2048,
    )
    write_measured(profile, file)
    return str(file)


def test_the_longest_trajectory_sets_the_steps_and_all_tokens_the_work() -> None:
    assert forecast_rollout_s(FLEET, BATCH) == pytest.approx(80 * 0.01 + 400 * 0.001 + 0.5)


def test_more_engines_share_the_work_but_not_the_longest_trajectory() -> None:
    two = forecast_rollout_s(replace(FLEET, num_engines=2), BATCH)
    assert two == pytest.approx(80 * 0.01 + 200 * 0.001 + 0.5)


def test_the_slowest_degree_of_a_mixed_fleet_sets_the_time() -> None:
    slow = replace(STEP, a_s=0.02)
    mixed = RunLaws(engines=((STEP, LIMITS), (slow, LIMITS)), num_engines=2)
    assert forecast_rollout_s(mixed, BATCH) == pytest.approx(80 * 0.02 + 200 * 0.001 + 0.5)


def test_the_first_iteration_has_no_forecast() -> None:
    assert fleet_only().check(iteration(0)) is None


def test_an_iteration_does_not_enter_its_own_forecast() -> None:
    forecaster = fleet_only()
    forecaster.check(iteration(0))
    expected = forecaster.forecast(1)
    check = forecaster.check(iteration(1, generated_tokens=4000))
    assert check is not None
    assert check.forecast.t_rollout_s == expected.t_rollout_s


def test_a_wrong_law_shows_in_the_error_and_is_not_corrected() -> None:
    forecaster = fleet_only()
    checks = [forecaster.check(iteration(step, t_rollout_s=10.0)) for step in range(6)]
    forecasts = {round(check.forecast.t_rollout_s, 9) for check in checks[1:] if check}
    assert len(forecasts) == 1
    last = checks[-1]
    assert last is not None
    assert last.t_rollout_error == pytest.approx(abs(last.forecast.t_rollout_s - 10.0) / 10.0)


def test_recent_batches_and_recent_errors_count_more() -> None:
    forecaster = fleet_only(half_life_steps=1.0)
    forecaster.check(iteration(0, generated_tokens=400))
    forecaster.check(iteration(1, generated_tokens=600))
    mean_tokens = (400 * 0.5 + 600) / 1.5
    assert forecaster.forecast(2).t_rollout_s == pytest.approx(80 * 0.01 + mean_tokens * 0.001 + 0.1)


def test_a_fleet_that_runs_dry_is_not_forecast() -> None:
    forecaster = fleet_only(last_full_step=1)
    forecaster.check(iteration(0))
    assert forecaster.check(iteration(1)) is not None
    assert forecaster.check(iteration(2)) is None


def test_an_idle_fleet_is_no_measurement() -> None:
    forecaster = fleet_only()
    forecaster.check(iteration(0))
    check = forecaster.check(iteration(1, t_rollout_s=0.0))
    assert check is not None
    assert math.isnan(check.t_rollout_error)


def test_a_skipped_update_is_neither_measured_nor_learned_from(model_folder: Path) -> None:
    laws, _ = load_run_laws(LibraConfig(), PLAN, str(model_folder))
    forecaster = RunForecaster(laws, half_life_steps=10, last_full_step=100)
    forecaster.check(iteration_report(0))
    before = forecaster.forecast(1).t_train_s
    check = forecaster.check(iteration_report(1, update=update_report(1, tokens=0, skipped=True)))
    assert check is not None
    assert math.isnan(check.t_train_error)
    assert forecaster.forecast(2).t_train_s == pytest.approx(before)


def test_any_model_folder_has_laws_on_the_cpu_host(model_folder: Path) -> None:
    laws, missing = load_run_laws(LibraConfig(), PLAN, str(model_folder))
    assert missing == []
    forecaster = RunForecaster(laws, half_life_steps=10, last_full_step=100)
    forecaster.check(iteration_report(0))
    forecast = forecaster.forecast(1)
    assert 0 < forecast.t_train_s < math.inf
    assert 0 < forecast.t_rollout_s < math.inf


def test_twice_the_trained_tokens_take_longer(model_folder: Path) -> None:
    laws, _ = load_run_laws(LibraConfig(), PLAN, str(model_folder))
    few, many = (RunForecaster(laws, half_life_steps=10, last_full_step=9) for _ in range(2))
    few.check(iteration_report(0, update=update_report(tokens=330, micro_batches=1)))
    many.check(iteration_report(0, update=update_report(tokens=660, micro_batches=2)))
    assert many.forecast(1).t_train_s > few.forecast(1).t_train_s


def test_the_cache_of_a_cpu_engine_is_the_configured_one(model_folder: Path) -> None:
    laws, _ = load_run_laws(LibraConfig(), PLAN, str(model_folder))
    model = load_model(model_folder)
    float32_bytes = 2 * model.kv_bytes_per_token
    assert laws.engines[0][1].kv_capacity == int(256 * 2**20 / float32_bytes)


def test_a_profile_of_the_same_model_takes_the_place_of_the_kernels(model_folder: Path) -> None:
    config = LibraConfig(planner=PlannerConfig(profile=measured_profile(model_folder / "host.yaml")))
    laws, missing = load_run_laws(config, PLAN, str(model_folder))
    assert missing == []
    (law, _), cache = laws.engines[0], laws.engines[0][1].kv_capacity
    assert law == replace(STEP, kv_tokens=cache), "its cache is the configured one"


def test_a_measured_trainer_takes_the_place_of_the_kernels(model_folder: Path) -> None:
    file = measured_profile(model_folder / "host.yaml", trainers=(TRAINER,))
    laws, _ = load_run_laws(LibraConfig(planner=PlannerConfig(profile=file)), PLAN, str(model_folder))
    assert laws.trainer is not None
    batch = TrainedBatch(sequences=10, tokens=1000, squared_tokens=100_000, longest_tokens=100, micro_batches=2)
    assert forecast_train_s(laws.trainer, laws.shape, batch) == pytest.approx(2 * 0.01 + 1000 * 1e-4 + 100_000 * 1e-8 + 0.005)
    assert laws.grounding[1].startswith("trainer: tp 1 pp 1 measured")


@pytest.mark.parametrize("fault", ["other model", "other software", "damaged", "missing"])
def test_a_profile_that_cannot_be_used_leaves_the_kernels_and_says_why(model_folder: Path, fault: str) -> None:
    file = model_folder / "host.yaml"
    measured_profile(
        file, hidden=256 if fault == "other model" else 128, software={"torch": "0.1"} if "software" in fault else {}
    )
    if fault == "damaged":
        file.write_text(file.read_text()[:40])
    if fault == "missing":
        file.unlink()
    laws, missing = load_run_laws(LibraConfig(planner=PlannerConfig(profile=str(file))), PLAN, str(model_folder))
    plain, _ = load_run_laws(LibraConfig(), PLAN, str(model_folder))
    assert missing == []
    assert laws.engines == plain.engines
    assert {"other model": "hidden 256", "other software": "torch 0.1 then"}.get(
        fault, "no calibration profile"
    ) in laws.grounding[0]
    assert laws.grounding[0].startswith("engines: kernels of CPU-host")


def test_a_resumed_forecaster_goes_on_as_if_it_had_never_stopped() -> None:
    whole, first, resumed = (fleet_only(half_life_steps=2.0) for _ in range(3))
    for step in range(4):
        whole.check(iteration(step, generated_tokens=400 + 50 * step))
        first.check(iteration(step, generated_tokens=400 + 50 * step))
    resumed.history = ForecastHistory.from_json(json.loads(json.dumps(first.history.to_json())))
    for step in range(4, 6):
        assert resumed.check(iteration(step, generated_tokens=900)) == whole.check(iteration(step, generated_tokens=900))


def test_what_is_kept_does_not_grow_with_the_run() -> None:
    forecaster = fleet_only()
    sizes = set()
    for step in range(300):
        forecaster.check(iteration(step))
        sizes.add(len(json.dumps(forecaster.history.to_json())) // 100)
    assert max(sizes) < 15, "hundreds of bytes, whatever the number of iterations"
    assert forecaster.history.generated.weight < 1 / (1 - 0.5**0.1) + 1e-6


def test_the_first_iteration_has_nothing_to_be_compared_with() -> None:
    assert fleet_only().check(iteration(0)) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: [],
        lambda state: {name: value for name, value in state.items() if name != "trained"},
        lambda state: state | {"generated": {"total": {"turns": 1.0}, "weight": 1.0}},
        lambda state: state | {"generated": {"total": {}, "weight": 2.0}},
        lambda state: state | {"generated": state["generated"] | {"weight": float("nan")}},
        lambda state: state | {"train_error": {"total": {"error": -1.0}, "weight": 1.0}},
        lambda state: state | {"train_error": {"total": {"error": "much"}, "weight": 1.0}},
        lambda state: state | {"rollout_error": None},
    ],
)
def test_a_damaged_history_is_refused_in_a_sentence(damage: Callable[[dict[str, Any]], Any]) -> None:
    forecaster = fleet_only()
    forecaster.check(iteration(0))
    with pytest.raises(CheckpointError, match=r"forecast history .+ is damaged \(.+\); resume from another checkpoint"):
        ForecastHistory.from_json(damage(forecaster.history.to_json()))


def test_an_unreadable_model_has_no_law_and_says_why(tmp_path: Path) -> None:
    laws, missing = load_run_laws(LibraConfig(model=ModelConfig(path=str(tmp_path))), PLAN, str(tmp_path))
    assert laws == RunLaws()
    assert "config.json" in missing[0]
