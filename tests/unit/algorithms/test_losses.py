"""A toy policy (one logit table) with the real losses: the same gradient for any split, and for an independent computation."""

from dataclasses import dataclass
from math import exp
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from libra_core.algorithms.losses import LossDiagnostics, LossSum, LossTokens, policy_loss
from libra_core.config.training import LossConfig

KINDS = ("token_mean", "sequence_mean", "dr_grpo", "gspo", "cispo")
MAX_NEW_TOKENS = 20
VOCAB = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Loss tokens of one sequence; log-probs are constants but for the policy's own."""

    tokens: Tensor
    sampler: Tensor
    recomputed: Tensor
    reference: Tensor
    advantage: float


@st.composite
def batches(draw: st.DrawFn) -> list[Sample]:
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))

    def near_uniform(size: int) -> Tensor:
        return -2 + 0.4 * torch.randn(size, generator=generator, dtype=torch.float64)

    return [
        Sample(
            tokens=torch.randint(0, VOCAB, (length,), generator=generator),
            sampler=near_uniform(length),
            recomputed=near_uniform(length),
            reference=near_uniform(length),
            advantage=float(torch.randn((), generator=generator)),
        )
        for length in lengths
    ]


def configs() -> st.SearchStrategy[LossConfig]:
    return st.builds(
        LossConfig,
        kind=st.sampled_from(KINDS),
        clip_dual=st.sampled_from([None, 1.1, 3.0]),
        old_logprobs=st.sampled_from(["sampler", "recompute"]),
        kl_coefficient=st.sampled_from([0.0, 0.3]),
        kl_estimator=st.sampled_from(["k1", "k2", "k3"]),
        entropy_coefficient=st.sampled_from([0.0, 0.1]),
    )


def table() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(VOCAB, generator=generator, dtype=torch.float64).requires_grad_()


def loss_of(logits: Tensor, samples: list[Sample], config: LossConfig) -> LossSum:
    distribution = logits.log_softmax(0)
    entropy = -(distribution.exp() * distribution).sum()
    tokens = torch.cat([sample.tokens for sample in samples])
    lengths = torch.tensor([len(sample.tokens) for sample in samples])
    sampler = torch.cat([sample.sampler for sample in samples])
    recomputed = torch.cat([sample.recomputed for sample in samples])
    sequence_ids = torch.repeat_interleave(torch.arange(len(samples)), lengths)
    inputs = LossTokens(
        logprobs=distribution[tokens],
        entropy=entropy.expand(len(tokens)),
        sampler_logprobs=sampler,
        old_logprobs=recomputed if config.old_logprobs == "recompute" else sampler,
        reference_logprobs=torch.cat([sample.reference for sample in samples]) if config.kl_coefficient else None,
        advantages=torch.tensor([sample.advantage for sample in samples], dtype=torch.float64)[sequence_ids],
        sequence_ids=sequence_ids,
    )
    return policy_loss(inputs, config, max_new_tokens=MAX_NEW_TOKENS)


def gradient(parts: list[list[Sample]], config: LossConfig) -> Tensor:
    """Accumulate every part as a rank or micro-batch would, divide once by the global weight."""
    logits = table()
    weight = 0
    for part in parts:
        loss = loss_of(logits, part, config)
        loss.total.backward()
        weight += loss.weight
    assert logits.grad is not None
    return logits.grad / weight


@settings(max_examples=150, deadline=None)
@given(batches(), configs(), st.data())
def test_any_split_into_micro_batches_and_ranks_has_the_same_gradient(
    samples: list[Sample], config: LossConfig, data: st.DataObject
) -> None:
    places = [data.draw(st.integers(0, 3)) for _ in samples]
    parts = [[sample for sample, place in zip(samples, places, strict=True) if place == part] for part in range(4)]
    split = gradient([part for part in parts if part], config)
    torch.testing.assert_close(split, gradient([samples], config))


def naive_objective(logprob: Tensor, old: float, advantage: float, ratio: Tensor, config: LossConfig) -> Tensor:
    bounded = torch.clamp(ratio, 1 - config.clip_low, 1 + config.clip_high)
    if config.kind == "cispo":
        return float(bounded.detach()) * advantage * logprob
    objective = torch.min(ratio * advantage, bounded * advantage)
    if config.clip_dual is None or advantage >= 0:
        return objective
    return torch.max(objective, torch.tensor(config.clip_dual * advantage, dtype=torch.float64))


def naive_loss(logits: Tensor, samples: list[Sample], config: LossConfig) -> Tensor:
    """Token by token, straight from the papers' formulas; no KL."""
    distribution = logits.log_softmax(0)
    entropy = -(distribution.exp() * distribution).sum()
    samples = [sample for sample in samples if len(sample.tokens)]
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        old = sample.recomputed if config.old_logprobs == "recompute" else sample.sampler
        length = len(sample.tokens)
        log_ratios = [distribution[token] - old[i] for i, token in enumerate(sample.tokens)]
        of_sequence = torch.stack(log_ratios).mean().exp()
        for i, token in enumerate(sample.tokens):
            ratio = of_sequence if config.kind == "gspo" else log_ratios[i].exp()
            objective = naive_objective(distribution[token], float(old[i]), sample.advantage, ratio, config)
            if config.old_logprobs == "recompute":
                objective = objective * min(exp(float(old[i] - sample.sampler[i])), 2.0)
            divisor = {"dr_grpo": MAX_NEW_TOKENS, "sequence_mean": length, "gspo": length}.get(config.kind, 1)
            total = total - (objective + config.entropy_coefficient * entropy) / divisor
    by_token = config.kind in ("token_mean", "cispo")
    return total / (sum(len(sample.tokens) for sample in samples) if by_token else len(samples))


@settings(max_examples=100, deadline=None)
@given(batches(), configs().map(lambda config: config.model_copy(update={"kl_coefficient": 0.0})))
def test_loss_and_gradient_equal_a_naive_computation(samples: list[Sample], config: LossConfig) -> None:
    logits = table()
    expected = naive_loss(logits, samples, config)
    expected.backward()
    loss = loss_of(table(), samples, config)
    torch.testing.assert_close(loss.total / loss.weight, expected)
    torch.testing.assert_close(gradient([samples], config), logits.grad)


def one_token(log_ratio: float, advantage: float, **config: Any) -> tuple[float, float, float]:
    """Loss, gradient with respect to the log-prob and clipped count of a single token."""
    loss, slope = loss_of_one(log_ratio, advantage, **config)
    return float(loss.total.detach()), slope, loss.diagnostics.clipped


def diagnostics(log_ratio: float, advantage: float, **config: Any) -> LossDiagnostics:
    return loss_of_one(log_ratio, advantage, **config)[0].diagnostics


def loss_of_one(log_ratio: float, advantage: float, **config: Any) -> tuple[LossSum, float]:
    logprob = torch.tensor([-1.0 + log_ratio], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.0], dtype=torch.float64)
    tokens = LossTokens(
        logprobs=logprob,
        entropy=torch.zeros(1, dtype=torch.float64),
        sampler_logprobs=old,
        old_logprobs=old,
        advantages=torch.tensor([advantage], dtype=torch.float64),
        sequence_ids=torch.zeros(1, dtype=torch.int64),
    )
    loss = policy_loss(tokens, LossConfig(**config), max_new_tokens=MAX_NEW_TOKENS)
    loss.total.backward()
    assert logprob.grad is not None
    return loss, float(logprob.grad)


def test_the_upper_clip_may_be_higher_than_the_lower() -> None:
    inside, outside = 0.2, 0.3
    assert one_token(inside, 1.0, clip_low=0.2, clip_high=0.28)[1] == pytest.approx(-exp(inside))
    assert one_token(outside, 1.0, clip_low=0.2, clip_high=0.28) == (pytest.approx(-1.28), 0.0, 1.0)
    assert one_token(-outside, -1.0, clip_low=0.2, clip_high=0.28) == (pytest.approx(0.8), 0.0, 1.0)


def test_a_clipped_token_that_got_worse_still_learns() -> None:
    assert one_token(0.5, -1.0)[1] == pytest.approx(exp(0.5))


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    assert one_token(1.0, 1.0, kind="cispo", clip_high=0.28)[1:] == (pytest.approx(-1.28), 1.0)


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "gspo"])
def test_a_worse_token_counts_with_at_most_three_times_its_advantage(kind: str) -> None:
    assert one_token(1.0, -2.0, kind=kind)[:2] == (pytest.approx(2 * exp(1.0)), pytest.approx(2 * exp(1.0)))
    for log_ratio in (1.2, 13.0, 19.9, 20.1, 500.0):
        assert one_token(log_ratio, -2.0, kind=kind) == (6.0, 0.0, 0.0)
    assert one_token(13.0, 1.0, kind=kind)[:2] == (pytest.approx(-1.28), 0.0)


def test_bounded_tokens_are_counted_apart_from_clipped_ones() -> None:
    def counts(log_ratio: float, advantage: float, **config: Any) -> tuple[float, float]:
        found = diagnostics(log_ratio, advantage, **config)
        return found.clipped, found.dual_clipped

    assert counts(13.0, -1.0) == (0.0, 1.0)
    assert counts(-1.0, -1.0) == (1.0, 0.0)
    assert counts(13.0, 1.0) == (1.0, 0.0)
    assert counts(1.0, -1.0) == counts(13.0, -1.0, clip_dual=None) == (0.0, 0.0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-30, 30), st.floats(-3, 3)), min_size=1, max_size=8),
    st.floats(1.01, 10.0),
)
def test_the_dual_clip_is_that_of_the_field(tokens: list[tuple[float, float]], dual: float) -> None:
    """Written as losses to minimise, after verl's `compute_policy_loss` (`clip_ratio_c`)."""
    log_ratios = torch.tensor([log_ratio for log_ratio, _ in tokens], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([advantage for _, advantage in tokens], dtype=torch.float64)
    ratio = log_ratios.exp()
    one_sided = torch.maximum(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.28))
    two_sided = torch.minimum(-advantages * dual, one_sided)
    expected = torch.where(advantages < 0, two_sided, one_sided).sum()
    expected.backward()
    ours = log_ratios.detach().clone().requires_grad_()
    zeros = torch.zeros_like(advantages)
    inputs = LossTokens(
        logprobs=ours,
        entropy=zeros,
        sampler_logprobs=zeros,
        old_logprobs=zeros,
        advantages=advantages,
        sequence_ids=torch.zeros(len(tokens), dtype=torch.int64),
    )
    loss = policy_loss(inputs, LossConfig(clip_low=0.2, clip_high=0.28, clip_dual=dual), max_new_tokens=MAX_NEW_TOKENS)
    loss.total.backward()
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(ours.grad, log_ratios.grad)


@pytest.mark.parametrize("log_ratio", [13.0, 19.9, 20.1, 40.0, 500.0])
def test_without_a_dual_clip_loss_and_gradient_agree_and_stay_finite(log_ratio: float) -> None:
    def loss(at: float) -> float:
        return one_token(at, -1.0, clip_dual=None)[0]

    value, slope, _ = one_token(log_ratio, -1.0, clip_dual=None)
    assert value < float("inf")
    step = 1e-4
    assert slope == pytest.approx((loss(log_ratio + step) - loss(log_ratio - step)) / (2 * step), rel=1e-4)
    assert slope > 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_without_loss_tokens_count_nowhere(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    full = Sample(
        tokens=torch.tensor([1, 2, 3]),
        sampler=-2 + torch.randn(3, generator=generator, dtype=torch.float64),
        recomputed=torch.zeros(3, dtype=torch.float64),
        reference=torch.zeros(3, dtype=torch.float64),
        advantage=1.0,
    )
    none = torch.zeros(0, dtype=torch.float64)
    empty = Sample(tokens=none.long(), sampler=none, recomputed=none, reference=none, advantage=5.0)
    config = LossConfig(kind=kind)  # type: ignore[arg-type]
    torch.testing.assert_close(gradient([[full], [empty]], config), gradient([[full]], config))
