import numpy as np
import pytest

from libra_core.costs.layouts import TrainingLoad
from libra_core.costs.least_squares import nonnegative_fit, robust_fit
from libra_core.costs.measured_training import TrainerCell, TrainerLawFit, TrainerVisits, fit_trainer

BASE_S, TOKEN_S, TOKEN2_S, STEP_S = 1e-2, 1e-4, 6e-8, 5e-3
CELLS = ((1, 64), (8, 64), (1, 256), (8, 256), (1, 1024), (3, 1024), (1, 1900))
SPREAD = TrainingLoad.of(np.random.default_rng(0).integers(50, 1900, 64))


def cell(load: TrainingLoad, micro_batches: int = 1, slowdown: float = 1.0) -> TrainerCell:
    seconds = BASE_S * micro_batches + TOKEN_S * load.tokens + TOKEN2_S * load.squared_tokens
    return TrainerCell(load=load, micro_batches=micro_batches, seconds=seconds * slowdown)


def equal_cells(disturbed: int | None = None) -> tuple[TrainerCell, ...]:
    loads = [TrainingLoad.of([float(tokens)] * number) for number, tokens in CELLS]
    return tuple(cell(load, slowdown=1.5 if index == disturbed else 1.0) for index, load in enumerate(loads))


def law(pp: int = 1, *, disturbed: int | None = None, batch_slowdown: float = 1.0) -> TrainerLawFit:
    batches = (cell(SPREAD, 20, slowdown=batch_slowdown),)
    return fit_trainer(1, pp, TrainerVisits(cells=equal_cells(disturbed), batches=batches, step_s=STEP_S))


def test_the_law_behind_the_cells_is_found() -> None:
    found = law()
    assert (found.micro_batch_s, found.s_per_token, found.s_per_token2) == pytest.approx((BASE_S, TOKEN_S, TOKEN2_S))
    assert found.held_out_worst_error < 1e-6


def test_a_batch_outside_the_fit_is_judged_with_its_sign() -> None:
    assert law(batch_slowdown=1.25).batch_error == pytest.approx(-0.2)


@pytest.mark.parametrize("disturbed", range(len(CELLS)))
def test_one_disturbed_cell_hardly_moves_the_forecast(disturbed: int) -> None:
    assert law(disturbed=disturbed).t_train_s(SPREAD) == pytest.approx(law().t_train_s(SPREAD), rel=0.02)


def test_the_robust_fit_equals_the_plain_one_on_exact_times() -> None:
    design = np.array([[1.0, x] for x in (1, 2, 4, 8)])
    times = design @ np.array([3.0, 0.5])
    assert robust_fit(design, times)[0] == pytest.approx(nonnegative_fit(design, times)[0])


def test_a_step_is_its_micro_batches_and_the_optimizer() -> None:
    expected = 4 * BASE_S + TOKEN_S * 4096 * 4 + TOKEN2_S * 1024**2 * 16 + STEP_S
    load = TrainingLoad.of([1024.0] * 16)
    assert law().t_train_s(load, micro_batch_tokens=4096) == pytest.approx(expected)


def test_two_stages_wait_for_one_micro_batch_more() -> None:
    load = TrainingLoad.of([1024.0] * 16)
    busy_s = law(1).t_train_s(load) - STEP_S
    assert law(2).t_train_s(load) == pytest.approx(busy_s * 5 / 4 + STEP_S)


def test_of_equal_tokens_longer_sequences_take_longer() -> None:
    costs = law()
    assert costs.t_train_s(TrainingLoad.of([1024.0] * 4)) > costs.t_train_s(TrainingLoad.of([256.0] * 16))
