"""Log-prob and entropy from logits whose vocabulary is cut over tensor-parallel ranks, in two all-reduces."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _LogprobEntropy(torch.autograd.Function):
    """With z = logits / temperature: ∂logp/∂z = onehot - p and ∂H/∂z = -p · (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, group: dist.ProcessGroup | None
    ) -> tuple[Tensor, Tensor]:
        size = dist.get_world_size(group) if group is not None else 1
        width = logits.shape[-1]
        first = width * (dist.get_rank(group) if group is not None else 0)
        scaled = logits.float() / temperature
        # The peak of all slices: exp overflows float32 beyond 88, and a peak of each rank's own would give each another scale.
        peak = scaled.amax(-1)
        if size > 1:
            dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
        scaled -= peak[:, None]
        weights = scaled.exp()
        here = (targets >= first) & (targets < first + width)
        column = (targets - first).clamp(0, width - 1)[:, None]  # valid where the target is another rank's, too: `here` zeroes it
        sums = torch.stack([weights.sum(-1), scaled.gather(-1, column)[:, 0] * here, (weights * scaled).sum(-1)])
        if size > 1:
            dist.all_reduce(sums, group=group)
        norm, target, weighted = sums
        log_norm = norm.log()
        # log Z - Σ z·p, not -Σ p·log p: where p underflows to 0 the product with its logarithm would be nan.
        entropy = log_norm - weighted / norm
        ctx.save_for_backward(weights.div_(norm[:, None]), scaled.sub_(log_norm[:, None]), entropy, here, column)
        ctx.dtype, ctx.temperature = logits.dtype, temperature
        return target - log_norm, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad_logprob, grad_entropy = grads
        probs, logprobs, entropy, here, column = ctx.saved_tensors
        grad = -probs * grad_logprob[:, None]
        grad.scatter_add_(-1, column, (grad_logprob * here)[:, None])
        if bool(grad_entropy.any()):
            grad -= probs * (logprobs + entropy[:, None]) * grad_entropy[:, None]
        return grad.div_(ctx.temperature).to(ctx.dtype), None, None, None


def logprob_entropy(
    logits: Tensor, targets: Tensor, *, temperature: float, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Log-prob of `targets[N]` and entropy `[N]` under softmax(logits / temperature), in float32.

    `logits[N, V / tp]` is this rank's slice of the vocabulary; `group` holds the ranks of the slices (None: not cut).
    """
    return _LogprobEntropy.apply(logits, targets, temperature, group)
