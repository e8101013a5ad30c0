"""Costs and errors that are learnt."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from libra_core.errors import CheckpointError
from libra_core.planning.experience import CostBook, ErrorBook, Experience
from libra_core.planning.objective import ERROR
from libra_core.types.transition import Tier, TransitionCost

PRIORS = {tier: TransitionCost(start_s=100.0) for tier in Tier}


def test_the_prior_holds_until_a_transition_of_its_kind_was_measured() -> None:
    book = CostBook(priors=PRIORS).including(Tier.FLIP, TransitionCost(drain_s=2.0, start_s=4.0))
    assert book.expected(Tier.FLIP).total_s == 6.0
    assert book.expected(Tier.RELAYOUT).total_s == 100.0


def test_only_the_last_three_count() -> None:
    book = CostBook(priors=PRIORS)
    for seconds in (1000.0, 1.0, 2.0, 3.0):
        book = book.including(Tier.FLIP, TransitionCost(transfer_s=seconds))
    assert book.expected(Tier.FLIP) == TransitionCost(transfer_s=2.0)


def test_the_error_is_that_of_the_study_until_something_was_compared() -> None:
    assert ErrorBook().error == ERROR
    assert ErrorBook().including(math.nan, 1.0).error == ERROR
    assert ErrorBook().including(12.0, 10.0).error == pytest.approx(0.2)


def test_recent_errors_count_more() -> None:
    improving = ErrorBook().including(20.0, 10.0).including(10.0, 10.0)
    assert improving.error == pytest.approx(0.8 / 1.8)


def test_over_and_under_even_out_in_the_bias() -> None:
    scattered = ErrorBook().including(13.0, 10.0).including(8.0, 10.0)
    assert scattered.error == pytest.approx((0.8 * 0.3 + 0.2) / 1.8)
    assert scattered.bias == pytest.approx((0.8 * 0.3 - 0.2) / 1.8)
    assert ErrorBook().including(8.0, 10.0).including(8.0, 10.0).bias == pytest.approx(-0.2)
    assert ErrorBook().bias == 0.0


def test_what_was_learnt_survives_a_checkpoint() -> None:
    learnt = CostBook(priors=PRIORS).including(Tier.FLIP, TransitionCost(drain_s=2.0, start_s=4.0))
    errors = ErrorBook().including(20.0, 10.0).including(10.0, 10.0)
    saved = json.loads(json.dumps(Experience(costs=learnt, errors=errors).to_json()))
    assert Experience.from_json(saved) == Experience(costs=replace(learnt, priors={}), errors=errors)


@pytest.mark.parametrize("saved", [[], {}, {"costs": {"flop": []}, "errors": {}}, {"costs": {"flip": [{"s": 1}]}, "errors": {}}])
def test_damaged_experience_is_refused_in_a_sentence(saved: Any) -> None:
    with pytest.raises(CheckpointError, match="measured costs in the checkpoint are damaged"):
        Experience.from_json(saved)
