"""The trainer of one model as `libra calibrate` measured it: the law of a micro-batch, judged on cells and batches it never saw.

Seconds are those of the slowest rank of a replica. Waiting for other ranks is in none of them: the bubble of a pipeline is
computed, and what replicas wait for each other in the reduction of gradients is left out, so one replica is all it forecasts.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from libra_core.costs.layouts import TrainingLoad
from libra_core.costs.least_squares import left_out, robust_fit


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCell:
    """Forward and backward of a batch of one or more micro-batches."""

    load: TrainingLoad
    micro_batches: int = 1
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLawFit:
    """A trainer of one tp and pp, dp 1, without recomputation."""

    tp: int
    pp: int
    micro_batch_s: float
    s_per_token: float
    s_per_token2: float
    """By Σ L²."""
    step_s: float
    """Once per step: gradients cleared and divided, norm, Adam."""
    held_out_median_error: float
    """Each cell forecast by the law of all other cells."""
    held_out_worst_error: float
    batch_error: float
    """Signed, of whole batches of spread lengths that no law was fitted on."""
    num_cells: int

    def busy_s(self, load: TrainingLoad, micro_batches: int) -> float:
        """Forward and backward of one rank."""
        return micro_batches * self.micro_batch_s + self.s_per_token * load.tokens + self.s_per_token2 * load.squared_tokens

    def t_train_s(self, load: TrainingLoad, micro_batch_tokens: int = 4096) -> float:
        """One optimizer step of one replica, by 1F1B."""
        micro_batches = max(1, ceil(load.tokens / micro_batch_tokens))
        return self.busy_s(load, micro_batches) * (micro_batches + self.pp - 1) / micro_batches + self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerVisits:
    """What was measured at one tp and pp."""

    cells: tuple[TrainerCell, ...]
    """Fitted; at least four."""
    batches: tuple[TrainerCell, ...]
    """Kept out of the fit; at least one."""
    step_s: float


def fit_trainer(tp: int, pp: int, visits: TrainerVisits) -> TrainerLawFit:
    """Robust non-negative relative least squares over the cells; then the law is judged."""
    at = np.array([[cell.micro_batches, cell.load.tokens, cell.load.squared_tokens] for cell in visits.cells])
    seconds = np.array([cell.seconds for cell in visits.cells])
    law, _ = robust_fit(at, seconds)
    off = np.abs(left_out(robust_fit, at, seconds) / seconds - 1)
    batches = np.array([[cell.micro_batches, cell.load.tokens, cell.load.squared_tokens] for cell in visits.batches])
    measured = np.array([cell.seconds for cell in visits.batches])
    return TrainerLawFit(
        tp=tp,
        pp=pp,
        micro_batch_s=law[0],
        s_per_token=law[1],
        s_per_token2=law[2],
        step_s=visits.step_s,
        held_out_median_error=float(np.median(off)),
        held_out_worst_error=float(np.max(off)),
        batch_error=float(np.median(batches @ np.asarray(law) / measured - 1)),
        num_cells=len(visits.cells),
    )
