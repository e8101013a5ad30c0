"""From the histograms of the states that describe a trajectory to one distribution of what is left.

Four groups of rows, coarse to fine: what holds for all trajectories (any turn, this turn), what the tool returns say over all
prompts, what the prompt says whatever its tools return, and the prompt's own visits of this very state. Within a group a state
is blended with the coarser ones before it, `(n·own + k·coarser) / (n + k)` with n visits. Tool returns and prompt are two
witnesses: `P(r | returns, prompt) ∝ P(r | returns)·P(r | prompt) / P(r)`, as if independent given r, so that a prompt's own
history does not drown out a return that it has never met. The prompt's own visits of the state then overrule their product.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from libra_core.routing.node_table import TOKENS, WEIGHT, WIDTH
from libra_core.routing.sketch import BINS, CENTRES

_SAME = 0.999
"""A state that holds this share of the visits of the coarser one before it says nothing new."""
_SUMS = np.zeros((2, WIDTH), np.float32)
"""Of a row: the sum of its shares, and their mean as far as bins know it."""
_SUMS[0, :BINS] = 1.0
_SUMS[1, :BINS] = CENTRES
_BINNED = _SUMS[1]
_GENERAL = 3
"""Rows of what holds for all: ignorance, any turn, this turn."""
_OWN = 2
"""Rows of a prompt at any turn and at this turn."""


def blend_states(
    rows: NDArray[np.float32], shrinkage: Sequence[float], own_from: int, units: tuple[float, float]
) -> tuple[NDArray[np.float32], float, list[float]]:
    """Shares `[BINS]` that sum to 1, the mean, and the visits of each row.

    `rows` are ignorance, any turn, this turn, then the states by tool returns, and from `own_from` on the prompt's own in
    the same order; each may end early. `shrinkage` is the k of each, in `units` of weight: in general, and of the
    prompt whatever its tools return. One product of matrices for all chains, over whole rows: a decision has microseconds.
    """
    weights: list[float] = rows[:, WEIGHT].tolist()
    count, first_both, general = len(weights), own_from + _OWN, min(_GENERAL, own_from)
    trust = _trust(weights, shrinkage, own_from, units)
    plain = [0.0] * count
    plain[0] = _pass_down(plain, weights, trust, range(general - 1, 0, -1))
    below = plain[:general]
    by_returns = _on_top(below, weights, trust, range(own_from - 1, general - 1, -1))
    if own_from == count:
        answer = np.array(by_returns, np.float32).dot(rows)
        return answer[:BINS], float(answer[TOKENS]), weights
    by_prompt = _on_top(below, weights, trust, range(min(first_both, count) - 1, own_from - 1, -1))
    if own_from == general:
        answer = np.array(by_prompt, np.float32).dot(rows)
        return answer[:BINS], float(answer[TOKENS]), weights
    both = [0.0] * count
    left = _pass_down(both, weights, trust, range(count - 1, first_both - 1, -1))
    mixed = np.array((plain, by_returns, by_prompt, both), np.float32).dot(rows)
    witness = mixed[1]
    shares = witness * mixed[2]
    shares /= mixed[0]
    total, binned = _SUMS.dot(shares).tolist()
    # histograms know means only to within their bins: keep the ratio of exact to binned mean of the better witness
    exact = float(witness[TOKENS]) / float(_BINNED.dot(witness))
    shares *= left / total
    shares += mixed[3]
    return shares[:BINS], left * exact * binned / total + float(mixed[3, TOKENS]), weights


def _trust(weights: list[float], shrinkage: Sequence[float], own_from: int, units: tuple[float, float]) -> list[float]:
    """Share of each state against the coarser ones; 0 for those that repeat the visits of the state before them.

    How far samples of a prompt agree says how far the prompt's length may be believed, not what one tool return among them
    means: the states of both have the general unit.
    """
    general, of_prompt = units
    trust, before, last_of_prompt = [0.0], 0.0, own_from + 1
    for index in range(1, len(weights)):
        weight = weights[index]
        if weight <= 0.0:
            trust.append(0.0)
        elif own_from <= index <= last_of_prompt:
            trust.append(weight / (weight + shrinkage[index] * of_prompt))
        elif index >= _GENERAL and weight >= _SAME * before:
            trust.append(0.0)
        else:
            trust.append(weight / (weight + shrinkage[index] * general))
        before = weight
    return trust


def _pass_down(factors: list[float], weights: Sequence[float], trust: Sequence[float], group: range) -> float:
    """Set the factors of a group, the finest state first, and return what it leaves to coarser ones."""
    left = 1.0
    for index in group:
        if trust[index]:
            factors[index] = left * trust[index] / weights[index]
            left *= 1.0 - trust[index]
    return left


def _on_top(general: list[float], weights: Sequence[float], trust: Sequence[float], group: range) -> list[float]:
    """A group blended with what holds for all, whose factors are given."""
    factors = [0.0] * len(weights)
    left = _pass_down(factors, weights, trust, group)
    for index, factor in enumerate(general):
        factors[index] = left * factor
    return factors
