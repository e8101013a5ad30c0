"""A distribution of remaining generated tokens."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from libra_core.routing.sketch import quantile


class Residual(NamedTuple):
    """Shares `[BINS]` over the fixed bins of `sketch`, which sum to 1, with the exact mean."""

    shares: NDArray[np.float32]
    mean: float
    """Remaining tokens."""
    evidence: float
    """Finished trajectories, after forgetting, that the most general state has seen; 0 before anything was learnt."""
    own_visits: float = 0.0
    """Of these, samples of the same prompt."""

    def quantile(self, share: float) -> float:
        """Count below which that share lies, interpolated inside its bin."""
        return quantile(self.shares, share)
