"""A distribution of remaining generated tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Residual:
    """Shares `[BINS]` over the fixed bins of `sketch`, which sum to 1, with the exact mean."""

    shares: NDArray[np.float32]
    mean: float
    """Remaining tokens."""
    evidence: float
    """Visits, after forgetting, of the states that carry the answer; 0 before anything was learnt."""

    def quantile(self, share: float) -> float:
        """Smallest length below which that share lies, interpolated inside its bin."""
        raise NotImplementedError
