"""Costs and errors that are learnt."""

import json
import math
from typing import Any

import pytest

from libra_core.errors import CheckpointError
from libra_core.planning.experience import CostBook, ErrorBook, restored_experience, saved_experience
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


def test_what_was_learnt_survives_a_checkpoint() -> None:
    learnt = CostBook(priors=PRIORS).including(Tier.FLIP, TransitionCost(drain_s=2.0, start_s=4.0))
    errors = ErrorBook().including(20.0, 10.0).including(10.0, 10.0)
    saved = json.loads(json.dumps(saved_experience(learnt, errors)))
    assert restored_experience(CostBook(priors=PRIORS), saved) == (learnt, errors)


def test_a_checkpoint_of_before_has_no_experience() -> None:
    assert restored_experience(CostBook(priors=PRIORS), None) == (CostBook(priors=PRIORS), ErrorBook())


@pytest.mark.parametrize("saved", [[], {}, {"costs": {"flop": []}, "errors": {}}, {"costs": {"flip": [{"s": 1}]}, "errors": {}}])
def test_damaged_experience_is_refused_in_a_sentence(saved: Any) -> None:
    with pytest.raises(CheckpointError, match="measured costs in the checkpoint are damaged"):
        restored_experience(CostBook(priors=PRIORS), saved)
