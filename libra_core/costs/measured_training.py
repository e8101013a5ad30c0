"""The trainer of one model as `libra calibrate` measured it: the law of a micro-batch, judged on cells and batches it never saw.

Seconds are those of the slowest rank of a replica. Waiting for other ranks is in none of them: the bubble of a pipeline is
computed, and what replicas wait for each other in the reduction of gradients is left out, so one replica is all it forecasts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from libra_core.costs.facts import Fit
from libra_core.costs.layouts import TrainingLoad
from libra_core.costs.least_squares import left_out, robust_fit
from libra_core.errors import ConfigError


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


class MeasuredTrainingCosts:
    """Stands in for `TrainingCosts` where a host was calibrated."""

    def __init__(self, trainers: Sequence[TrainerLawFit]) -> None:
        self._trainers = {(trainer.tp, trainer.pp): trainer for trainer in trainers}

    def t_train_s(self, load: TrainingLoad, *, tp: int = 1, pp: int = 1, micro_batch_tokens: int = 4096) -> float:
        """One optimizer step of one replica, by 1F1B. Raises `ConfigError` for a layout that was not measured."""
        law = self.law(tp, pp)
        micro_batches = max(1, ceil(load.tokens / micro_batch_tokens))
        return law.busy_s(load, micro_batches) * (micro_batches + pp - 1) / micro_batches + law.step_s

    def law(self, tp: int, pp: int) -> TrainerLawFit:
        """Raises `ConfigError` for a layout that was not measured."""
        fit = self.fits(tp, pp)
        if not fit.fits:
            raise ConfigError(fit.reason)
        return self._trainers[tp, pp]

    def fits(self, tp: int, pp: int) -> Fit:
        if (tp, pp) in self._trainers:
            return Fit(fits=True)
        measured = ", ".join(f"tp {one} pp {other}" for one, other in sorted(self._trainers)) or "none"
        return Fit(fits=False, reason=f"a trainer of tp {tp} pp {pp} was not measured; measured: {measured}")

    def layouts(self) -> tuple[tuple[int, int], ...]:
        """(tp, pp) of every law."""
        return tuple(sorted(self._trainers))
