"""Histogram bins over token counts."""

import bisect

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from libra_core.routing.sketch import BINS, CENTRES, EDGES, bin_of, quantile


@given(st.integers(min_value=0, max_value=10**12))
def test_a_count_falls_between_the_edges_of_its_bin(tokens: int) -> None:
    assert bin_of(tokens) == bisect.bisect_right(EDGES, tokens) - 1


def test_centres_lie_inside_their_bins() -> None:
    assert len(EDGES) == len(CENTRES) == BINS
    assert [bin_of(round(centre - 0.25)) for centre in CENTRES] == list(range(BINS))


@given(st.lists(st.integers(min_value=0, max_value=100_000), min_size=1, max_size=200), st.sampled_from((0.1, 0.5, 0.9)))
def test_quantiles_lie_in_the_bin_of_the_exact_one(counts: list[int], share: float) -> None:
    shares = np.bincount([bin_of(count) for count in counts], minlength=BINS).astype(np.float32) / len(counts)
    exact = sorted(counts)[max(0, int(np.ceil(share * len(counts) - 1e-4)) - 1)]
    found = bin_of(int(quantile(shares, share) + 1e-3))
    assert abs(found - bin_of(exact)) <= 1 or shares[min(found, bin_of(exact)) + 1 : max(found, bin_of(exact))].sum() < 1e-3
