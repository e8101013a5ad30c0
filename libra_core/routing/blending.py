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

from libra_core.routing.sketch import BINS, CENTRES

_SAME = 0.999
"""A state that holds this share of the visits of the coarser one before it says nothing new."""
_CENTRES = np.array(CENTRES, np.float32)
_GENERAL = 3
"""Rows of what holds for all: ignorance, any turn, this turn."""
_OWN = 2
"""Rows of a prompt at any turn and at this turn."""


def blend_states(
    rows: NDArray[np.float32], weights: Sequence[float], shrinkage: Sequence[float], own_from: int, *, tokens: int
) -> tuple[NDArray[np.float32], float]:
    """Shares `[BINS]` that sum to 1, and the mean.

    `rows` are ignorance, any turn, this turn, then the states by tool returns, and from `own_from` on the prompt's own in
    the same order; each may end early. `weights` are their visits, `shrinkage` the k of each in the same unit, `tokens` the
    column of summed remaining tokens.
    """
    general = range(1, min(_GENERAL, own_from))
    returns = range(_GENERAL, own_from)
    prompt = range(own_from, min(own_from + _OWN, len(weights)))
    both = range(own_from + _OWN, len(weights))
    trust = _trust(weights, shrinkage, {*range(_GENERAL), *prompt})
    chains = [_chain((*general, *group), weights, trust) for group in ((), returns, prompt)]
    plain, by_returns, by_prompt = np.array(chains, np.float32) @ rows
    answer = by_prompt if not returns else by_returns if not prompt else None
    if answer is not None:
        return answer[:BINS], float(answer[tokens])
    shares = by_returns[:BINS] * by_prompt[:BINS] / plain[:BINS]
    shares /= shares.sum()
    # histograms know means only to within their bins: keep the ratio of exact to binned mean of the better witness
    mean = float(shares @ _CENTRES) * float(by_returns[tokens]) / float(by_returns[:BINS] @ _CENTRES)
    for index in both:
        if trust[index]:
            own = rows[index] / weights[index]
            shares = (1.0 - trust[index]) * shares + trust[index] * own[:BINS]
            mean = (1.0 - trust[index]) * mean + trust[index] * float(own[tokens])
    return shares, mean


def _trust(weights: Sequence[float], shrinkage: Sequence[float], distinct: set[int]) -> list[float]:
    """Share of each state against the coarser ones; 0 for those that repeat the visits of the state before them."""
    return [
        weight / (weight + shrinkage[index]) if weight > 0 and (index in distinct or weight < _SAME * weights[index - 1]) else 0.0
        for index, weight in enumerate(weights)
    ]


def _chain(order: Sequence[int], weights: Sequence[float], trust: Sequence[float]) -> list[float]:
    """Factor of each row, so that their sum is the blend of `order` with ignorance below it."""
    factors = [0.0] * len(weights)
    left = 1.0
    for index in reversed(order):
        if trust[index]:
            factors[index] = left * trust[index] / weights[index]
            left *= 1.0 - trust[index]
    factors[0] = left
    return factors
