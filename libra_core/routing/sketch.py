"""Fixed bins for token counts: three per octave from 8 on. Equal everywhere, so that histograms add up.

A fixed log-spaced histogram merges by addition and forgets by a factor, which a reservoir or a t-digest does not; its quantiles
are off by at most 15 %, and means do not come from it.
"""

import numpy as np

_FEW = (0, 1, 4)
_OCTAVE = (8, 10, 13)
_OCTAVES = 15
BINS = len(_FEW) + _OCTAVES * len(_OCTAVE)

EDGES: tuple[int, ...] = (*_FEW, *(edge << octave for octave in range(_OCTAVES) for edge in _OCTAVE))
"""Smallest count of each bin; the last bin is open (from 212,992 tokens)."""
_UPPER = (*EDGES[1:], 2 * EDGES[-1])
CENTRES: tuple[float, ...] = tuple((low + high - 1) / 2 for low, high in zip(EDGES, _UPPER, strict=True))
"""Middle of each bin, tokens."""
_FINE = 4096
_TABLE = tuple(int(np.searchsorted(EDGES, count, side="right")) - 1 for count in range(_FINE))


def bin_of(tokens: int) -> int:
    """Bin of a count; what lies beyond the last edge falls in the last bin."""
    if tokens < _FINE:
        return _TABLE[tokens]
    shift = tokens.bit_length() - 12
    return min(BINS - 1, _TABLE[tokens >> shift] + len(_OCTAVE) * shift)


def quantile(shares: "np.ndarray[tuple[int], np.dtype[np.float32]]", share: float) -> float:
    """Count below which `share` of the histogram lies, linear inside its bin."""
    running = np.cumsum(shares)
    wanted = share * float(running[-1])
    index = min(int(np.searchsorted(running, wanted)), BINS - 1)
    inside = float(shares[index])
    before = float(running[index]) - inside
    part = (wanted - before) / inside if inside > 0 else 1.0
    return EDGES[index] + part * (_UPPER[index] - 1 - EDGES[index])
