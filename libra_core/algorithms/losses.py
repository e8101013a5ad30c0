"""Policy losses as (sum, weight): the one form in which splitting a batch cannot change its gradient.

Every loss is `Σ_t w_t · l_t` over loss tokens, divided once by the *global* sum of weights over all micro-batches and ranks.
Since both are sums over whole sequences, any division of the sequences gives the same gradient; a mean per micro-batch does not.

| kind | w_t | weight of a sequence | source |
|---|---|---|---|
| token_mean | 1 | its number of loss tokens | DAPO, arXiv 2503.14476, eq. 8 |
| sequence_mean | 1 / its number of loss tokens | 1 | GRPO, arXiv 2402.03300, eq. 3 |
| dr_grpo | 1 / `max_new_tokens` (a constant) | 1 | Dr. GRPO, arXiv 2503.20783, section 3.2 |
| gspo | as sequence_mean, ratio exp(mean log ratio) | 1 | GSPO, arXiv 2507.18071, eq. 5-7 |
| cispo | 1 | its number of loss tokens | CISPO, arXiv 2506.13585, eq. 4-5 |
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from libra_core.algorithms.kl import kl_estimate, kl_penalty
from libra_core.config.training import LossConfig

_LOG_RATIO_BOUND = 20.0
"""exp(20) is still finite in every dtype that is trained, and a product with it too. Beyond it the ratio goes on as the straight
line that touches exp there, so that value and gradient stay finite and agree. A positive advantage is clipped long before; a
negative one by `clip_dual`, and not at all where that is switched off.
"""
_TOKEN_WEIGHTED = ("token_mean", "cispo")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """Loss tokens of whole sequences, concatenated. Every tensor is `[T]`; all but two are constants."""

    logprobs: Tensor
    """Of the trained policy, after temperature; differentiable."""
    entropy: Tensor
    """Of the trained policy's distribution at each token; differentiable."""
    sampler_logprobs: Tensor
    old_logprobs: Tensor
    """Denominator of the importance ratio: the sampler's, or recomputed before the update."""
    advantages: Tensor
    sequence_ids: Tensor
    """int64; which sequence of the micro-batch a token belongs to."""
    reference_logprobs: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSum:
    """One micro-batch's part of the global loss `Σ total / Σ weight`."""

    total: Tensor
    weight: int
    diagnostics: "LossDiagnostics"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDiagnostics:
    """Sums over loss tokens; divide by their global number."""

    entropy: float
    mismatch_kl: float
    """k3 of KL(sampler ‖ trainer) at the sampled tokens."""
    clipped: float
    """Tokens whose gradient the clip removes or bounds, those of `dual_clipped` left out."""
    dual_clipped: float
    """Tokens of negative advantage whose gradient `clip_dual` removes."""
    importance: float
    """trainer / sampler probability."""
    importance_max: float
    tokens: int


def policy_loss(tokens: LossTokens, config: LossConfig, *, max_new_tokens: int) -> LossSum:
    """Sum of the weighted per-token losses and its weight; `max_new_tokens` is only used by `dr_grpo`."""
    lengths = torch.bincount(tokens.sequence_ids)
    log_ratio = tokens.logprobs - tokens.old_logprobs
    if config.kind == "gspo":
        log_ratio = _sequence_means(log_ratio, tokens.sequence_ids, lengths)
    objective = _clipped_objective(_ratio(log_ratio), tokens, config)
    per_token = -objective.value * _truncated_importance(tokens, config)
    if config.entropy_coefficient:
        per_token = per_token - config.entropy_coefficient * tokens.entropy
    if config.kl_coefficient and tokens.reference_logprobs is not None:
        penalty = kl_penalty(tokens.logprobs, tokens.reference_logprobs, tokens.sampler_logprobs, config.kl_estimator)
        per_token = per_token + config.kl_coefficient * penalty
    total = (per_token * _token_weights(tokens.sequence_ids, lengths, config, max_new_tokens)).sum()
    # A count and no mean: a micro-batch's own mean would weigh tokens by what they were packed with.
    weight = tokens.logprobs.numel() if config.kind in _TOKEN_WEIGHTED else int((lengths > 0).sum())
    return LossSum(total=total, weight=weight, diagnostics=_diagnostics(tokens, objective))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objective:
    """Per token `[T]`: what is to be maximised, and which bound touches it."""

    value: Tensor
    clipped: Tensor
    dual_clipped: Tensor


def _ratio(log_ratio: Tensor) -> Tensor:
    # Below the bound the second factor is 1 with slope 0; above it the first is constant, and the slope is the second's alone.
    return log_ratio.clamp(max=_LOG_RATIO_BOUND).exp() * (1.0 + (log_ratio - _LOG_RATIO_BOUND).clamp(min=0.0))


def _clipped_objective(ratio: Tensor, tokens: LossTokens, config: LossConfig) -> _Objective:
    """PPO's clip leaves tokens of negative advantage unbounded from above: there the objective is at least `clip_dual · A`
    (dual-clip PPO, arXiv 1912.09729). CISPO bounds every ratio itself.
    """
    advantages = tokens.advantages
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    nowhere = torch.zeros_like(ratio, dtype=torch.bool)
    if config.kind == "cispo":
        return _Objective(value=bounded.detach() * advantages * tokens.logprobs, clipped=ratio != bounded, dual_clipped=nowhere)
    free, safe = ratio * advantages, bounded * advantages
    value = torch.minimum(free, safe)
    if config.clip_dual is None:
        return _Objective(value=value, clipped=safe < free, dual_clipped=nowhere)
    dual_clipped = (advantages < 0) & (ratio > config.clip_dual)
    return _Objective(
        value=torch.where(dual_clipped, config.clip_dual * advantages, value), clipped=safe < free, dual_clipped=dual_clipped
    )


def _truncated_importance(tokens: LossTokens, config: LossConfig) -> Tensor | float:
    """min(old / sampler, cap): corrects for engine and trainer disagreeing about the same weights (Yao et al. 2025, TIS)."""
    if config.old_logprobs == "sampler" or config.importance_cap is None:
        return 1.0
    return (tokens.old_logprobs - tokens.sampler_logprobs).exp().clamp(max=config.importance_cap)  # inf is cut too; no gradient


def _token_weights(sequence_ids: Tensor, lengths: Tensor, config: LossConfig, max_new_tokens: int) -> Tensor | float:
    if config.kind in _TOKEN_WEIGHTED:
        return 1.0
    if config.kind == "dr_grpo":
        return 1.0 / max_new_tokens
    return 1.0 / lengths[sequence_ids]


def _sequence_means(values: Tensor, sequence_ids: Tensor, lengths: Tensor) -> Tensor:
    """Mean of each token's sequence, at each token."""
    sums = torch.zeros(len(lengths), dtype=values.dtype, device=values.device).index_add(0, sequence_ids, values)
    # Nobody reads the mean of a sequence without a loss token, but it must be a number: 0 / 0 would stop every check for nan.
    return (sums / lengths.clamp(min=1))[sequence_ids]


@torch.no_grad()
def _diagnostics(tokens: LossTokens, objective: _Objective) -> LossDiagnostics:
    mismatch = tokens.sampler_logprobs - tokens.logprobs
    importance = (-mismatch).clamp(max=_LOG_RATIO_BOUND).exp()
    return LossDiagnostics(
        entropy=float(tokens.entropy.sum()),
        mismatch_kl=float(kl_estimate(mismatch, "k3").sum()),
        clipped=float(objective.clipped.sum()),
        dual_clipped=float(objective.dual_clipped.sum()),
        importance=float(importance.sum()),
        importance_max=float(importance.max()) if importance.numel() else 0.0,
        tokens=importance.numel(),
    )
