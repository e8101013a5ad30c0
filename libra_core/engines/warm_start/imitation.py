"""Supervised steps on demonstrations."""

from collections.abc import Sequence
from typing import Final

import torch
from transformers import Qwen3ForCausalLM

from libra_core.config.model import WarmStartConfig
from libra_core.engines.warm_start.demonstrations import Demonstration
from libra_core.engines.warm_start.muon import Muon

_READING_WEIGHT: Final = 0.02
"""Weight of tokens that the policy only reads; predicting a passage that repeats its title teaches copying early."""

_WEIGHT_DECAY: Final = 0.01


class Imitator:
    """Owns the optimizers; one call is one step.

    Muon on the matrices reaches the same loss as Adam alone in about half the steps, at a fifth more time per step.
    """

    def __init__(self, policy: Qwen3ForCausalLM, settings: WarmStartConfig) -> None:
        self._policy = policy
        self._peaks = (settings.matrix_learning_rate, settings.learning_rate)
        matrices = [weight for name, weight in policy.named_parameters() if _is_matrix(name, weight)]
        others = [weight for name, weight in policy.named_parameters() if not _is_matrix(name, weight)]
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            Muon(matrices, momentum=0.95, weight_decay=_WEIGHT_DECAY),
            torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=_WEIGHT_DECAY),
        )

    def step(self, demonstrations: Sequence[Demonstration], rate_share: float) -> float:
        """Imitate one batch at a share of the peak learning rates; returns its weighted mean loss in nats per token."""
        self._policy.train()
        self._policy.zero_grad(set_to_none=True)
        loss = self._loss(demonstrations)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 1.0)
        for optimizer, peak in zip(self._optimizers, self._peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate_share
            optimizer.step()
        return loss.item()

    def _loss(self, demonstrations: Sequence[Demonstration]) -> torch.Tensor:
        token_ids = _padded([demonstration.token_ids for demonstration in demonstrations])  # [B, T]
        spoken = _padded([demonstration.loss_mask for demonstration in demonstrations])
        present = _padded([(1,) * len(demonstration.token_ids) for demonstration in demonstrations])
        weights = (spoken + _READING_WEIGHT * (present - spoken))[:, 1:].flatten()
        logits = self._policy(input_ids=token_ids, use_cache=False).logits[:, :-1]  # right padding is never attended to
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), token_ids[:, 1:].flatten(), reduction="none")
        return (nats * weights).sum() / weights.sum()


def _is_matrix(name: str, weight: torch.nn.Parameter) -> bool:
    return weight.ndim == 2 and "embed_tokens" not in name


def _padded(sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    """Stack on the right with zeros, [B, T]."""
    length = max(map(len, sequences))
    return torch.tensor([[*sequence, *[0] * (length - len(sequence))] for sequence in sequences])
