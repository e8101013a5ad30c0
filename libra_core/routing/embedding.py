"""Baseline: a sentence embedding of the prompt and a ridge regression on it predict the total before the first turn."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import RoutingCosts
from libra_core.routing.placement import TieBreaker, bucket_of
from libra_core.routing.tree_reader import ENOUGH
from libra_core.types.ids import EngineId, TrajectoryId

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to vectors `[texts, width]`."""
Vector = NDArray[np.float64]

_RIDGE = 1.0
_SOLVE_EVERY = 32
_CACHED_TEXTS = 20_000


class Ridge:
    """Online ridge regression of log totals: normal equations grow with every sample, solved every so often."""

    def __init__(self, ridge: float = _RIDGE) -> None:
        self._ridge = ridge
        self._gram: NDArray[np.float64] | None = None
        self._moment: Vector | None = None
        self._weights: Vector | None = None
        self.samples = 0

    def add(self, features: Vector, target: float) -> None:
        if self._gram is None or self._moment is None:
            self._gram = self._ridge * np.eye(len(features))
            self._gram[-1, -1] = 1e-6  # the constant is not shrunk
            self._moment = np.zeros(len(features))
        self._gram += np.outer(features, features)
        self._moment += target * features
        self.samples += 1
        if self.samples % _SOLVE_EVERY == 0 or self._weights is None or self.samples < _SOLVE_EVERY:
            self._weights = np.linalg.solve(self._gram, self._moment).astype(np.float64)

    def predict(self, features: Vector) -> float | None:
        """None before the first sample."""
        return None if self._weights is None else float(features @ self._weights)


class Embedding:
    """Chooses once, before the first turn: a prompt says nothing new later. Without evidence it takes the smallest bucket."""

    def __init__(self, buckets: Buckets, embed: Embed, *, seed: int) -> None:
        self.buckets = buckets
        self._embed = embed
        self._placement = TieBreaker(seed)
        self._ridge = Ridge()
        self._vectors: OrderedDict[str, Vector] = OrderedDict()

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        home = bucket_of(turn.current, engines)
        if home is not None:
            return self._placement.in_bucket(home, turn.current, engines).engine_id
        predicted = self._ridge.predict(self._features(turn.prompt_text)) if self._ridge.samples >= ENOUGH else None
        target = 0 if predicted is None else self.buckets.of(float(np.expm1(min(predicted, 30.0))))
        return self._placement.in_bucket(target, turn.current, engines).engine_id

    def learn(self, finished: FinishedTrajectory) -> None:
        self._ridge.add(self._features(finished.prompt_text), float(np.log1p(finished.generated_tokens)))

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Nothing is kept per trajectory."""

    def retune(self, buckets: Buckets, costs: RoutingCosts) -> None:
        self.buckets = buckets

    def _features(self, text: str) -> Vector:
        """The embedding and a constant; recent prompts are kept."""
        known = self._vectors.get(text)
        if known is None:
            vector = np.asarray(self._embed([text])[0], np.float64)
            known = self._vectors[text] = np.append(vector, 1.0)
            if len(self._vectors) > _CACHED_TEXTS:
                self._vectors.popitem(last=False)
        return known
