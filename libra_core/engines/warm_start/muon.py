"""Muon in float32. torch's own computes in bfloat16, which a CPU without instructions for it does thirty times slower."""

import math
from collections.abc import Iterable
from typing import Final

import torch

_STEPS: Final = 5
_POLYNOMIAL: Final = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: steepest at 0, so that five steps bring all singular values near 1."""


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are orthogonalised before they are applied (Jordan et al., 2024).

    Takes matrices alone; those of one shape are computed together.
    """

    def __init__(self, matrices: Iterable[torch.Tensor], *, lr: float = 1e-3, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape.setdefault(matrix.shape, []).append(matrix)
            for matrices in by_shape.values():
                updates = orthogonal(torch.stack([self._direction(matrix, group["momentum"]) for matrix in matrices]))
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.sub_(update, alpha=group["lr"] * math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1])))

    def _direction(self, matrix: torch.Tensor, momentum: float) -> torch.Tensor:
        """Nesterov's: the gradient and the mean that has it already."""
        assert matrix.grad is not None
        mean = self.state[matrix].setdefault("mean", torch.zeros_like(matrix))
        mean.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(mean, momentum)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrices of `[N, R, C]`, roughly: singular values end between 0.6 and 1.3."""
    tall = matrices.shape[1] > matrices.shape[2]
    update = matrices.mT if tall else matrices
    update = update / update.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    linear, cubic, quintic = _POLYNOMIAL
    for _ in range(_STEPS):
        gram = update @ update.mT
        update = torch.baddbmm(update, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), update, beta=linear)
    return update.mT if tall else update
