"""The independent side of the trainer checks: one process, Hugging Face modules, plain autograd, the loss written out naively."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from libra_core.config.training import LossConfig
from libra_core.types.batch import TrainingBatch, TrainingSequence


def hf_model(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def hf_logprobs(model: Any, token_ids: tuple[int, ...], temperature: float = 1.0) -> Any:
    """`[L - 1]` log-probs of tokens 1.. given those before, differentiable, with the full distributions `[L - 1, V]`."""
    import torch

    tokens = torch.tensor(token_ids)
    distribution = (model(tokens[None]).logits[0, :-1].float() / temperature).log_softmax(-1)
    return distribution.gather(-1, tokens[1:, None])[:, 0], distribution


def hf_gradients(folder: Path, batch: TrainingBatch, loss: LossConfig, temperature: float) -> dict[str, Any]:
    """Gradient of the token-mean clipped loss with entropy bonus, by HF name, as numpy arrays."""
    assert loss.kind == "token_mean", "the naive reference knows this loss only"
    model = hf_model(folder)
    total = sum(_sequence_loss(model, sequence, loss, temperature) for sequence in batch.sequences)
    (total / sum(sum(sequence.loss_mask[1:]) for sequence in batch.sequences)).backward()
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


def _sequence_loss(model: Any, sequence: TrainingSequence, loss: LossConfig, temperature: float) -> Any:
    import torch

    logprobs, distribution = hf_logprobs(model, sequence.token_ids, temperature)
    ratio = (logprobs - torch.tensor(sequence.logprobs[1:])).exp()
    objective = torch.min(ratio * sequence.advantage, ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high) * sequence.advantage)
    if sequence.advantage < 0 and loss.clip_dual is not None:
        objective = torch.max(objective, torch.full_like(objective, loss.clip_dual * sequence.advantage))
    entropy = -(distribution.exp() * distribution).sum(-1)
    per_token = -objective - loss.entropy_coefficient * entropy
    return (per_token * torch.tensor(sequence.loss_mask[1:])).sum()


def sampled_by(folder: Path, batch: TrainingBatch, *, temperature: float = 1.0, spread: float = 0.2) -> TrainingBatch:
    """The batch with log-probs of a policy near the folder's model, so that importance ratios scatter around 1 and some clip."""
    import torch

    model = hf_model(folder)
    noise = torch.Generator().manual_seed(0)

    def near(sequence: TrainingSequence) -> TrainingSequence:
        with torch.no_grad():
            exact, _ = hf_logprobs(model, sequence.token_ids, temperature)
        shifted = (exact + spread * torch.randn(exact.shape, generator=noise)).tolist()
        masked = zip(sequence.loss_mask[1:], shifted, strict=True)
        return replace(sequence, logprobs=(0.0, *(value if trained else 0.0 for trained, value in masked)))

    return replace(batch, sequences=tuple(near(sequence) for sequence in batch.sequences))
