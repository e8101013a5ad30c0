"""How much samples of one prompt agree in length: what decides how far a prompt's own few visits may be believed.

With ρ, the share of the variance of log totals that is the prompt's, a mean of n samples is best shrunk with a weight of
n / (n + k), k = (1 - ρ)/ρ (empirical Bayes; Efron and Morris, 1973). ρ is estimated online as the covariance of a new sample with
the mean of its prompt's earlier ones, over the variance.
"""

import math
from dataclasses import dataclass

PRIOR_RATIO = 3.0
"""k before anything is known: one visit of a prompt is worth a quarter."""
_PRIOR_PAIRS = 16.0
_WINDOW = 4096
"""Samples over which old ones fade."""
_LEAST_RATIO = 0.25
_FEWEST = 8


@dataclass(slots=True)
class PromptAgreement:
    """Running estimates over log totals; the names are also those in a tree's file."""

    samples: float = 0.0
    mean: float = 0.0
    variance: float = 0.0
    pairs: float = 0.0
    """Samples whose prompt had finished samples already."""
    shared: float = 1.0 / (1.0 + PRIOR_RATIO)
    """Covariance with the prompt's earlier mean, in units of the variance; the next likewise."""
    spread: float = 1.0

    def learn(self, generated_tokens: int, earlier_mean: float | None) -> None:
        """A finished total, and the mean of the finished totals of its prompt before it."""
        length = math.log1p(generated_tokens)
        self.samples = min(self.samples + 1.0, _WINDOW)
        off = length - self.mean
        self.mean += off / self.samples
        self.variance += (off * (length - self.mean) - self.variance) / self.samples
        if earlier_mean is None or self.samples < _FEWEST or self.variance <= 0:
            return
        self.pairs = min(self.pairs + 1.0, _WINDOW)
        rate = 1.0 / (_PRIOR_PAIRS + self.pairs)
        off = length - self.mean
        self.shared += rate * (off * (math.log1p(earlier_mean) - self.mean) / self.variance - self.shared)
        self.spread += rate * (off * off / self.variance - self.spread)

    @property
    def ratio(self) -> float:
        """k, at most the prior's: prompts that agree little still hold more visits as time goes by."""
        share = self.shared / self.spread if self.spread > 0 else 0.0
        return min(max((1.0 - share) / share, _LEAST_RATIO), PRIOR_RATIO) if share > 0 else PRIOR_RATIO

    def merge(self, other: "PromptAgreement") -> None:
        """Means weighted by the pairs each has seen; the prior counts once."""
        own, theirs = _PRIOR_PAIRS + self.pairs, other.pairs
        for name in ("shared", "spread"):
            setattr(self, name, (own * getattr(self, name) + theirs * getattr(other, name)) / (own + theirs))
        every = self.samples + other.samples
        if every > 0:
            for name in ("mean", "variance"):
                setattr(self, name, (self.samples * getattr(self, name) + other.samples * getattr(other, name)) / every)
        self.samples, self.pairs = min(every, _WINDOW), min(self.pairs + other.pairs, _WINDOW)
