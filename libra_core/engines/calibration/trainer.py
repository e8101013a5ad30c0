"""The grid that `libra calibrate` measures of the trainer: one real `MegatronTrainer` world per layout."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path

import numpy as np

from libra_core.config.training import OptimizerConfig, TrainingConfig
from libra_core.costs.layouts import TrainingLoad
from libra_core.costs.measured_training import TrainerCell, TrainerLawFit, TrainerVisits, fit_trainer
from libra_core.engines.calibration.sweeps import sweeps_within
from libra_core.engines.calibration.trainer_meter import Lengths, meter_rank
from libra_core.engines.model_folder import read_model_facts
from libra_core.engines.verification.worlds import WorldPool, layout, spec_of

_MICRO_BATCH_TOKENS = 4096
_LEARNING_RATE = 1e-7
"""So small that random advantages leave the model as it is."""
_BATCH_SEQUENCES = 64
_SWEEP_S = 240.0
"""For one sweep with the start of its processes; some 15 s on a free host."""
_SHORTEST, _LONGEST = 48, 1900


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerGrid:
    """What is measured; a cell is (sequences, mean tokens of one) in one micro-batch."""

    layouts: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (1, 2))
    """(tp, pp)."""
    cells: tuple[tuple[int, int], ...] = (
        *((1, 50), (2, 50), (4, 110), (1, 230), (3, 390), (1, 700), (1, 1100), (1, 1900)),
        *((40, 50), (30, 110), (15, 230), (9, 390), (5, 700), (3, 1100), (2, 1900)),
    )
    sweeps: int = 5
    budget_s: float = 60.0
    """Of the sweeps of one layout."""
    batches: int = 2
    """Of spread lengths, kept out of the fit; measured in every sweep."""


QUICK_TRAINER = TrainerGrid(
    layouts=((1, 1),),
    cells=((1, 50), (2, 50), (1, 230), (3, 390), (1, 1100), (1, 1900), (40, 50), (15, 230), (9, 390), (4, 700), (2, 1100)),
    sweeps=3,
    batches=1,
)


def measure_trainer(folder: Path, tp_pp: tuple[int, int], grid: TrainerGrid, progress: Callable[[str], None]) -> TrainerLawFit:
    """A world for each sweep, in the same processes. As in the engine's grid, a cell is the median of its visits."""
    tp, pp = tp_pp
    optimizer = OptimizerConfig(learning_rate=_LEARNING_RATE)
    training = TrainingConfig(layout=layout(tp=tp, pp=pp), micro_batch_tokens=_MICRO_BATCH_TOKENS, optimizer=optimizer)
    sweep: list[Lengths] = [*(_uneven_lengths(*cell) for cell in grid.cells), *map(_spread_lengths, range(grid.batches))]
    warm_up = sweep[len(grid.cells) // 2]
    spec = spec_of(folder, training=training)
    meter = partial(meter_rank, vocab_size=read_model_facts(str(folder)).vocab_size)
    sweeps = sweeps_within(f"trainer TP{tp} PP{pp}", grid.sweeps, grid.budget_s, progress)
    with WorldPool(tp * pp, answer_s=_SWEEP_S) as pool:
        ranks = np.array([pool.run(meter, spec, [warm_up, *sweep]) for _ in sweeps])
    parts, rest = np.moveaxis(ranks[:, :, 1:].max(axis=1), -1, 0)  # of the slowest rank, [sweeps, cells]
    cells = [_cell(lengths, float(part)) for lengths, part in zip(sweep, np.median(parts, axis=0), strict=True)]
    measured, kept_out = cells[: len(grid.cells)], cells[len(grid.cells) :]
    visits = TrainerVisits(cells=tuple(measured), batches=tuple(kept_out), step_s=float(np.median(rest)))
    return fit_trainer(tp, pp, visits)


def _cell(lengths: Lengths, seconds: float) -> TrainerCell:
    return TrainerCell(load=TrainingLoad.of(lengths), micro_batches=ceil(sum(lengths) / _MICRO_BATCH_TOKENS), seconds=seconds)


def _uneven_lengths(number: int, mean: int) -> Lengths:
    """Evenly from half the mean to one and a half, as no real micro-batch has equal sequences."""
    return tuple(int(length) for length in np.clip(np.linspace(0.5, 1.5, number + 2)[1:-1] * mean, 2, _LONGEST))


def _spread_lengths(seed: int) -> Lengths:
    """Uniform prompts of 40 to 400 tokens and lognormal answers."""
    rng = np.random.default_rng(seed)
    drawn = rng.lognormal(4.6, 0.9, _BATCH_SEQUENCES) + rng.integers(40, 400, _BATCH_SEQUENCES)
    return tuple(int(length) for length in np.clip(drawn, _SHORTEST, _LONGEST))
