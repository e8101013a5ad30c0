import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.costs.api import RolloutCosts, load_device, load_model
from libra_core.errors import ConfigError

MODELS = ("qwen3_4b", "qwen3_14b", "qwen3_30b_a3b", "qwen2.5_3b", "llama3_8b")


def engine(model: str, device: str = "a100") -> RolloutCosts:
    return RolloutCosts(load_device(device), load_model(model))


@pytest.mark.parametrize("model", MODELS)
def test_tensor_parallelism_divides_the_work_of_a_step_at_most_once(model: str) -> None:
    costs = engine(model)
    for batch, context in ((1, 1024), (32, 8192), (256, 2048)):
        alone = costs.decode_step_s(1, batch, context)[0]
        for tp in costs.laws().of:
            assert costs.decode_step_s(tp, batch, context)[0] >= alone / tp
            assert costs.laws()[tp].step_s(batch, context) >= costs.laws()[1].step_s(batch, context) / tp


@settings(deadline=None, max_examples=40)
@given(tp=st.sampled_from([1, 2, 4, 8]), batch=st.integers(1, 255), context=st.integers(1, 30000))
def test_a_step_never_shrinks_with_batch_or_context(tp: int, batch: int, context: int) -> None:
    step = engine("qwen3_14b").laws()[tp]
    assert step.step_s(batch + 1, context) >= step.step_s(batch, context) > 0
    assert step.step_s(batch, context + 1) >= step.step_s(batch, context)


def test_kv_capacity_of_a_14b_engine_counts_every_gpu_once() -> None:
    costs = engine("qwen3_14b")
    assert costs.kv_tokens(1) == pytest.approx(0.26e6, rel=0.06)
    assert 12 <= costs.kv_tokens(8) / costs.kv_tokens(1) <= 13


def test_kv_heads_are_repeated_beyond_their_number() -> None:
    costs = engine("qwen3_30b_a3b")
    room = 8 * (costs.device.memory_bytes * 0.9 - costs.device.engine_workspace_bytes) - costs.model.weight_bytes
    assert costs.kv_tokens(8) == int(room / (2 * costs.model.kv_bytes_per_token))


def test_forty_thousand_tokens_take_at_least_as_many_steps() -> None:
    step = engine("qwen3_14b").laws()[8]
    assert 40_000 * step.step_s(1, 20_000) >= 40_000 * step.a_s > 200


def test_70b_does_not_fit_one_gpu_and_says_why() -> None:
    costs = engine("llama3_70b")
    fit = costs.fits(1)
    assert not fit.fits
    assert "141.1 GB of weights" in fit.reason
    assert tuple(costs.laws().of) == (2, 4, 8)
    with pytest.raises(ConfigError, match="leaves 0 tokens"):
        costs.laws()[1]


def test_tp8_is_not_offered_for_28_heads() -> None:
    costs = engine("qwen2.5_7b")
    assert "does not divide the 28 attention heads" in costs.fits(8).reason
    assert tuple(costs.laws().of) == (1, 2, 4)


def test_an_engine_never_spans_nodes() -> None:
    assert "more than the 8 GPUs of a node" in engine("llama3_70b").fits(16).reason


@pytest.mark.parametrize(
    ("smaller", "larger"), [("qwen2.5_3b", "qwen2.5_7b"), ("qwen3_4b", "qwen3_14b"), ("llama3_8b", "qwen3_14b")]
)
def test_a_bigger_model_steps_slower(smaller: str, larger: str) -> None:
    few, many = engine(smaller).laws()[2], engine(larger).laws()[2]
    assert few.step_s(16, 64_000) < many.step_s(16, 64_000)
    assert few.prefill_s(4096) < many.prefill_s(4096)


def test_experts_are_read_as_the_batch_touches_them() -> None:
    costs = engine("qwen3_30b_a3b")
    one, many = costs.decode_step_s(1, np.array([1.0, 64.0]), 64)
    dense = engine("qwen3_4b").decode_step_s(1, np.array([1.0, 64.0]), 64)
    assert many / one > 3
    assert dense[1] / dense[0] < 1.5


def test_a_move_pays_for_the_whole_context_and_prefill_for_the_cached_one() -> None:
    costs = engine("qwen3_14b")
    step = costs.laws()[4]
    assert step.prefill_s(32_768) > 2 * step.prefill_s(16_384) - step.prefill_a_s
    chunks = sum(step.prefill_s(1024, context) for context in range(0, 32_768, 1024))
    assert chunks == pytest.approx(step.prefill_s(32_768) + 31 * step.prefill_a_s)


def test_a_slower_link_costs_only_engines_that_communicate() -> None:
    a100, a800 = engine("qwen3_14b"), engine("qwen3_14b", "a800")
    assert a800.decode_step_s(1, 64, 4096)[0] == a100.decode_step_s(1, 64, 4096)[0]
    assert a800.decode_step_s(8, 256, 4096)[0] > a100.decode_step_s(8, 256, 4096)[0]


def test_the_linear_law_reproduces_the_sum_of_kernels() -> None:
    costs = engine("qwen3_14b")
    for tp in costs.laws().of:
        assert costs.laws()[tp].fit_error < 0.05
