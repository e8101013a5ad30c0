from dataclasses import replace
from math import inf

import numpy as np
import pytest

from libra_core.costs.api import (
    TrainingCosts,
    TrainingLoad,
    TrainingShape,
    load_device,
    load_model,
    publication_time,
)

LENGTHS = np.random.default_rng(0).integers(500, 12_000, 64)
LOAD = TrainingLoad.of(LENGTHS)
SHAPE = TrainingShape(tp=8, pp=1, dp=2, micro_batch_tokens=8192)


def trainer(model: str = "qwen3_14b", device: str = "a100") -> TrainingCosts:
    return TrainingCosts(load_device(device), load_model(model))


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
def test_the_bubble_is_pp_minus_1_micro_batches(pp: int) -> None:
    estimate = trainer().estimate(replace(SHAPE, tp=4, pp=pp, dp=1), LOAD)
    stage_s = estimate.parts.forward_backward_s + estimate.parts.tp_communication_s + estimate.parts.pp_transfer_s
    assert estimate.parts.bubble_s == pytest.approx((pp - 1) * stage_s / estimate.num_micro_batches)
    assert estimate.bubble_share == pytest.approx((pp - 1) / (estimate.num_micro_batches + pp - 1))


def test_14b_does_not_train_on_two_gpus_of_80_gb() -> None:
    for shape in (TrainingShape(tp=2), TrainingShape(pp=2), TrainingShape(dp=2)):
        estimate = trainer().estimate(shape, TrainingLoad.of([512.0] * 8))
        assert not estimate.fit.fits
        assert estimate.t_train_s == inf
        assert "GB" in estimate.fit.reason


def test_state_is_18_bytes_a_parameter_and_only_12_are_divided_by_replicas() -> None:
    costs = trainer()
    one, four = (costs.memory(TrainingShape(tp=8, dp=dp), 4096) for dp in (1, 4))
    share = costs.model.num_parameters / 8
    assert one.weights_bytes + one.gradients_bytes + one.optimizer_bytes == pytest.approx(18 * share, rel=1e-4)
    assert four.weights_bytes == one.weights_bytes
    assert four.optimizer_bytes == pytest.approx(one.optimizer_bytes / 4)


def test_layers_are_never_dropped() -> None:
    costs = trainer("qwen3_4b")
    refused = costs.shape_fit(TrainingShape(pp=8))
    assert "pp 8 does not divide the 36 layers" in refused.reason
    uneven = replace(TrainingShape(pp=8, tp=1), uneven_stages=True)
    assert costs.shape_fit(uneven).fits
    even = costs.memory(TrainingShape(pp=9), 1024)
    assert costs.memory(uneven, 1024).weights_bytes > even.weights_bytes


@pytest.mark.parametrize(
    ("model", "shape", "reason"),
    [
        ("qwen2.5_7b", TrainingShape(tp=8), "28 attention heads"),
        ("qwen3_14b", TrainingShape(tp=16), "node of 8 GPUs"),
        ("qwen2.5_3b", TrainingShape(tp=4), "2 key-value heads"),
        ("qwen3_14b", TrainingShape(ep=2, dp=2), "0 experts"),
        ("qwen3_30b_a3b", TrainingShape(ep=8, dp=4), "4 ranks of a stage"),
        ("qwen3_4b", TrainingShape(pp=72), "36 layers"),
    ],
)
def test_impossible_layouts_say_why_and_have_no_time(model: str, shape: TrainingShape, reason: str) -> None:
    estimate = trainer(model).estimate(shape, LOAD)
    assert reason in estimate.fit.reason
    assert estimate.t_train_s == inf


def test_a_bigger_model_trains_longer() -> None:
    times = [
        trainer(name).estimate(TrainingShape(tp=2, dp=4), LOAD).parts.total_s
        for name in ("qwen2.5_3b", "qwen3_4b", "llama3_8b", "qwen3_14b")
    ]
    assert times == sorted(times)


def test_training_is_never_faster_than_the_hardware() -> None:
    for device in ("a100", "a800", "h100", "h200"):
        costs = trainer(device=device)
        flops = 6 * costs.model.active_parameters * LOAD.tokens
        floor = flops / (SHAPE.num_gpus * costs.device.peak_flops)
        assert 1.2 * floor < costs.estimate(SHAPE, LOAD).t_train_s < 6 * floor


def test_attention_is_paid_by_the_sum_of_squares() -> None:
    even, skewed = TrainingLoad.of([8192.0] * 8), TrainingLoad.of([1024.0] * 7 + [58_368.0])
    assert even.tokens == skewed.tokens
    shape = TrainingShape(tp=8, micro_batch_tokens=65_536)
    costs = trainer()
    assert costs.estimate(shape, skewed).parts.forward_backward_s > 1.3 * costs.estimate(shape, even).parts.forward_backward_s


def test_memory_is_checked_at_the_longest_sequence() -> None:
    costs = trainer()
    short, long = TrainingLoad.of([2048.0] * 40), TrainingLoad.of([1024.0] * 40 + [40_960.0])
    shape = TrainingShape(tp=4, pp=2, dp=2, micro_batch_tokens=4096)
    few, many = costs.estimate(shape, short).memory, costs.estimate(shape, long).memory
    assert many.activations_bytes == pytest.approx(10 * few.activations_bytes)


def test_recomputation_trades_memory_for_time() -> None:
    costs = trainer()
    kept, again = (costs.estimate(replace(SHAPE, recompute=flag), LOAD) for flag in (False, True))
    assert kept.memory.activations_bytes > 5 * again.memory.activations_bytes
    assert kept.parts.forward_backward_s < 0.8 * again.parts.forward_backward_s


def test_replicas_on_one_node_exchange_gradients_on_nvlink() -> None:
    costs = trainer("qwen3_4b")
    inside, across = costs.data_parallel_s(TrainingShape(tp=4, dp=2)), costs.data_parallel_s(TrainingShape(tp=8, dp=2))
    assert across > 4 * inside / 2


def test_expert_parallelism_divides_experts_only() -> None:
    costs = trainer("qwen3_30b_a3b")
    whole, split = costs.memory(TrainingShape(dp=8), 4096), costs.memory(TrainingShape(dp=8, ep=8), 4096)
    experts = 48 * 128 * costs.model.expert_parameters
    assert whole.weights_bytes - split.weights_bytes == pytest.approx(2 * experts * 7 / 8)


def test_recomputed_logprobs_cost_a_forward_pass() -> None:
    plain = trainer().estimate(SHAPE, LOAD)
    with_pass = TrainingCosts(load_device("a100"), load_model("qwen3_14b"), logprob_pass=True).estimate(SHAPE, LOAD)
    assert plain.parts.logprob_s == 0
    assert 0.15 < with_pass.parts.logprob_s / plain.parts.forward_backward_s < 0.5


def test_more_replicas_never_lengthen_the_step() -> None:
    costs = trainer(device="a800")
    times = [costs.estimate(replace(SHAPE, dp=dp), TrainingLoad.of(np.full(256, 6000.0))).t_train_s for dp in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)


def test_publication_grows_with_the_model_and_is_seconds_at_14b() -> None:
    engines = {2: 12}
    train = TrainingShape(tp=8, dp=3)
    small, large = (publication_time(load_device("a800"), load_model(name))(train, engines) for name in ("qwen3_4b", "qwen3_14b"))
    assert small < large < 10
