"""Laws that a calibration could have measured, for tests that need one of them and hardly look inside."""

from dataclasses import replace
from typing import Any

from libra_core.costs.measured_training import TrainerLawFit

_TRAINER = TrainerLawFit(
    tp=1,
    pp=1,
    micro_batch_s=0.01,
    s_per_token=1e-4,
    s_per_token2=5e-8,
    step_s=0.005,
    held_out_median_error=0.03,
    held_out_worst_error=0.1,
    batch_error=0.0,
    num_cells=15,
)


def trainer_law(**changes: Any) -> TrainerLawFit:
    """One rank's, with what the test is about put in."""
    return replace(_TRAINER, **changes)
