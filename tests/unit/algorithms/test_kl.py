"""On a small categorical every expectation is a finite sum, so estimators can be compared with the exact KL."""

import pytest
import torch
from torch import Tensor

from libra_core.algorithms.kl import KlEstimator, kl_estimate, kl_penalty

ESTIMATORS: tuple[KlEstimator, ...] = ("k1", "k2", "k3")
LOGITS = torch.tensor([0.3, -1.2, 0.9, 0.1, -0.4], dtype=torch.float64)
REFERENCE = torch.tensor([-0.5, 0.4, 0.2, 1.1, -0.9], dtype=torch.float64).log_softmax(0)
STALE_SAMPLER = torch.tensor([0.8, -0.3, 0.1, -0.6, 0.2], dtype=torch.float64).log_softmax(0)


def exact_kl(logits: Tensor) -> Tensor:
    logprobs = logits.log_softmax(0)
    return (logprobs.exp() * (logprobs - REFERENCE)).sum()


def exact_gradient() -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    exact_kl(logits).backward()
    assert logits.grad is not None
    return logits.grad


def expected_penalty(sampler: Tensor, kind: KlEstimator) -> tuple[Tensor, Tensor]:
    """Value and gradient of the penalty, averaged over the sampler's distribution."""
    logits = LOGITS.clone().requires_grad_()
    penalty = kl_penalty(logits.log_softmax(0), REFERENCE, sampler, kind)
    value = (sampler.exp() * penalty).sum()
    value.backward()
    assert logits.grad is not None
    return value.detach(), logits.grad


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_gradient_is_that_of_the_exact_kl_on_policy(kind: KlEstimator) -> None:
    _, gradient = expected_penalty(LOGITS.log_softmax(0), kind)
    torch.testing.assert_close(gradient, exact_gradient())


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_gradient_is_that_of_the_exact_kl_when_the_sampler_is_stale(kind: KlEstimator) -> None:
    _, gradient = expected_penalty(STALE_SAMPLER, kind)
    torch.testing.assert_close(gradient, exact_gradient())


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_value_of_k1_and_k3_is_the_exact_kl(kind: KlEstimator) -> None:
    for sampler in (LOGITS.log_softmax(0), STALE_SAMPLER):
        value, _ = expected_penalty(sampler, kind)
        torch.testing.assert_close(value, exact_kl(LOGITS))


def test_differentiating_k3_itself_would_be_wrong() -> None:
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    (logprobs.detach().exp() * kl_estimate(logprobs - REFERENCE, "k3")).sum().backward()
    assert logits.grad is not None
    assert (logits.grad - exact_gradient()).abs().max() > 0.01


def test_k2_and_k3_are_never_negative() -> None:
    log_ratio = torch.linspace(-5, 5, 101, dtype=torch.float64)
    assert (kl_estimate(log_ratio, "k2") >= 0).all()
    assert (kl_estimate(log_ratio, "k3") >= 0).all()
