"""KL(policy ‖ reference) from sampled tokens: three values, one unbiased gradient."""

from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(log_ratio: Tensor, kind: KlEstimator) -> Tensor:
    """Per-token estimate from `log_ratio` = log π - log π_ref of tokens drawn from π (Schulman, "Approximating KL divergence").

    k1 = x is unbiased; k2 = x²/2 is biased but positive; k3 = exp(-x) - 1 + x is unbiased and positive.
    """
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return log_ratio.square() / 2
    return torch.expm1(-log_ratio) + log_ratio


def kl_penalty(logprobs: Tensor, reference_logprobs: Tensor, sampler_logprobs: Tensor, kind: KlEstimator) -> Tensor:
    """Estimate whose *gradient* is that of KL(π ‖ π_ref) in expectation over the sampler, whatever the estimator. All `[T]`.

    Differentiating k1 or k3 as a loss is wrong: E[∇k1] = 0, and E[∇k3] is the gradient of the opposite KL
    (Tang & Munos, arXiv 2506.09477). With r = π/μ for tokens drawn from μ and x = log π - log π_ref, the exact derivative is
    ∇KL = E_μ[r · x · ∇log π]; ∇(r · k3) equals it token by token, and ∇(r · k1) differs only by the zero-mean r · ∇log π.
    So the value is r · k and the gradient r · x · ∇log π for all three.
    """
    log_ratio = (logprobs - reference_logprobs).detach()
    ratio = (logprobs - sampler_logprobs).detach().exp()
    surrogate = ratio * log_ratio * logprobs
    return ratio * kl_estimate(log_ratio, kind) + surrogate - surrogate.detach()
