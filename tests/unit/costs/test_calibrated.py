"""Measured where it was measured, elsewhere the kernels' sum in the measured proportion."""

from dataclasses import replace

import pytest

from libra_core.costs.calibrated import calibrated_engines, calibrated_trainer
from libra_core.costs.facts import ModelFacts
from libra_core.costs.layouts import TrainingLoad, TrainingShape
from libra_core.costs.measured import PROFILE_VERSION, EngineLawFit, MeasuredProfile
from libra_core.costs.profiles import load_device, load_model
from libra_core.costs.rollout import RolloutCosts
from libra_core.costs.training import TrainingCosts
from libra_core.types.laws import EngineLaw
from support.laws import trainer_law

PLAIN = TrainingShape(recompute=False, distributed_optimizer=False, sequence_parallel=False, micro_batch_tokens=1024)
LOAD = TrainingLoad.of([300.0] * 32)
STEP = EngineLaw(
    a_s=9e-3,
    b_s=2e-4,
    c_s=1e-8,
    prefill_a_s=5e-3,
    prefill_b_s_per_token=3e-5,
    prefill_c_s_per_token2=1e-9,
    kv_tokens=9000,
)
LAW = trainer_law(step_s=0.006, held_out_median_error=0.033)


def model() -> ModelFacts:
    return replace(load_model("qwen3_4b"), num_layers=4, hidden_size=256, num_heads=8, num_kv_heads=4, vocab_size=1024)


def profile(**changes: object) -> MeasuredProfile:
    engine = EngineLawFit(tp=1, law=STEP, held_out_median_error=0.021, num_cells=15)
    whole = MeasuredProfile(
        version=PROFILE_VERSION,
        host="here",
        device="a processor, 2 cores",
        model="",
        measured_on="2026-11-29",
        clock="cpu",
        software={},
        engines=(engine,),
        trainers=(LAW, replace(LAW, pp=2, s_per_token=6e-5)),
        max_context_tokens=2048,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


KERNEL_ENGINES = RolloutCosts(load_device("cpu"), model())
KERNEL_TRAINER = TrainingCosts(load_device("cpu"), model())
SUMMED = KERNEL_ENGINES.laws()
ENGINES = calibrated_engines(profile(), KERNEL_ENGINES)
TRAINER = calibrated_trainer(profile(), KERNEL_TRAINER)


def test_a_measured_degree_has_the_measured_law() -> None:
    assert ENGINES[1] == replace(STEP, kv_tokens=SUMMED[1].kv_tokens)
    assert ENGINES[1].source == "tp 1 measured 2026-11-29 (held-out median error 2.1%)"


def test_another_degree_is_the_kernels_in_the_measured_proportion() -> None:
    one, two = SUMMED[1], SUMMED[2]
    found = ENGINES[2]
    assert found.step_s(16, 16 * 512) / two.step_s(16, 16 * 512) == pytest.approx(
        STEP.step_s(16, 16 * 512) / one.step_s(16, 16 * 512)
    )
    assert found.prefill_s(512) / two.prefill_s(512) == pytest.approx(STEP.prefill_s(512) / one.prefill_s(512))
    assert "tp 2 derived" in ENGINES[2].source


def test_engines_measured_as_the_kernels_say_change_nothing() -> None:
    same = EngineLawFit(tp=1, law=SUMMED[1], held_out_median_error=0, num_cells=4)
    assert calibrated_engines(profile(engines=(same,)), KERNEL_ENGINES)[2] == SUMMED[2]


def test_a_measured_layout_takes_its_measured_time() -> None:
    micro_batches = 10  # ceil(32 x 300 / 1024)
    busy_s = micro_batches * LAW.micro_batch_s + LAW.s_per_token * 9600 + LAW.s_per_token2 * 32 * 300**2
    assert "measured 2026-11-29" in TRAINER.source(PLAIN)
    assert TRAINER.estimate(PLAIN, LOAD).t_train_s == pytest.approx(busy_s + LAW.step_s)


def test_a_measured_pipeline_pays_its_bubble() -> None:
    busy_s = 10 * LAW.micro_batch_s + 6e-5 * 9600 + LAW.s_per_token2 * 32 * 300**2
    found = TRAINER.estimate(replace(PLAIN, pp=2), LOAD)
    assert found.parts.bubble_s == pytest.approx(busy_s / 10)
    assert found.t_train_s == pytest.approx(busy_s * 11 / 10 + LAW.step_s)


def test_two_replicas_share_the_measured_work_and_reduce_as_the_kernels_say() -> None:
    two = replace(PLAIN, dp=2)
    found, told = TRAINER.estimate(two, LOAD), KERNEL_TRAINER.estimate(two, LOAD)
    busy_s = 5 * LAW.micro_batch_s + LAW.s_per_token * 4800 + LAW.s_per_token2 * 16 * 300**2
    assert found.parts.forward_backward_s == pytest.approx(busy_s)
    assert found.parts.dp_exposed_s == told.parts.dp_exposed_s > 0
    assert "the reduction over dp 2 is that of the kernels" in TRAINER.source(two)


@pytest.mark.parametrize(
    "changes", [{"tp": 2}, {"recompute": True}, {"pp": 4}, {"cp": 2}], ids=["tp", "recompute", "pp", "context"]
)
def test_an_unmeasured_layout_is_the_kernels_in_one_proportion(changes: dict[str, int]) -> None:
    shape = replace(PLAIN, **changes)  # type: ignore[arg-type]
    measured, summed = (costs.estimate(PLAIN, LOAD).parts.forward_backward_s for costs in (TRAINER, KERNEL_TRAINER))
    found, told = TRAINER.estimate(shape, LOAD), KERNEL_TRAINER.estimate(shape, LOAD)
    assert found.t_train_s == pytest.approx(told.t_train_s * measured / summed)
    assert "derived" in TRAINER.source(shape)


def test_memory_and_what_fits_stay_those_of_the_device() -> None:
    impossible = replace(PLAIN, tp=16)
    assert TRAINER.estimate(impossible, LOAD).t_train_s == float("inf")
    assert TRAINER.estimate(PLAIN, LOAD).memory == KERNEL_TRAINER.estimate(PLAIN, LOAD).memory
    assert calibrated_engines(profile(), KERNEL_ENGINES, [64]).why_not(64) == KERNEL_ENGINES.fits(64).reason
    assert ENGINES[2].kv_tokens == KERNEL_ENGINES.kv_tokens(2)
