"""How many trajectories an engine may hold: a share of its KV cache in expected context. Pure bookkeeping, no clock.

Without a cap, prefixes are evicted between turns and prefilled again each turn, which made iterations up to 4.7 times as
long (docs/measurements.md#streamed-steps-slack-and-the-cap). With it the rest waits at the coordinator, where
waiting costs nothing, and binds when a place is free.
"""

from dataclasses import dataclass, field

from libra_core.types.ids import EngineId, TrajectoryId
from libra_core.types.running_mean import NEWEST_WEIGHT

_BACK_OFF = 0.9
_RECOVERY = 1.02
_LOWEST_FILL = 0.3


@dataclass(slots=True)
class ContextHistory:
    """Running mean of final context lengths, per prompt kind, in tokens."""

    prior_tokens: float
    _means: dict[str, float] = field(default_factory=dict[str, float])

    def expected(self, kind: str, context_tokens: int) -> float:
        """Never below what is there already."""
        return max(self._means.get(kind, self.prior_tokens), float(context_tokens))

    def add(self, kind: str, final_tokens: int) -> None:
        mean = self._means.get(kind)
        self._means[kind] = final_tokens if mean is None else mean + NEWEST_WEIGHT * (final_tokens - mean)


@dataclass(slots=True)
class _EngineKv:
    kv_tokens: int
    fill: float
    held: dict[TrajectoryId, float] = field(default_factory=dict[TrajectoryId, float])
    preemptions: int = 0


class KvLedger:
    """Expected context of every bound trajectory, by engine.

    An empty engine always takes one trajectory, however long. The share adapts: each newly seen preemption lowers it, quiet
    looks raise it again up to the configured one. An infinite share is no cap.
    """

    def __init__(self, *, fill: float, history: ContextHistory) -> None:
        self._fill = fill
        self._history = history
        self._kv: dict[EngineId, _EngineKv] = {}
        self._engine_of: dict[TrajectoryId, EngineId] = {}

    def add_engine(self, engine_id: EngineId, kv_tokens: int) -> None:
        self._kv[engine_id] = _EngineKv(kv_tokens=kv_tokens, fill=self._fill)

    def remove_engine(self, engine_id: EngineId) -> None:
        kv = self._kv.pop(engine_id, None)
        for trajectory_id in kv.held if kv else ():
            del self._engine_of[trajectory_id]

    def engine_of(self, trajectory_id: TrajectoryId) -> EngineId | None:
        return self._engine_of.get(trajectory_id)

    def has_room(self, engine_id: EngineId, kind: str, context_tokens: int) -> bool:
        kv = self._kv[engine_id]
        if not kv.held:
            return True
        wanted = sum(kv.held.values()) + self._history.expected(kind, context_tokens)
        return wanted <= kv.fill * kv.kv_tokens

    def bind(self, trajectory_id: TrajectoryId, engine_id: EngineId, kind: str, context_tokens: int) -> None:
        """Also moves a bound trajectory, and refreshes the expectation of one that stays."""
        self._forget(trajectory_id)
        self._kv[engine_id].held[trajectory_id] = self._history.expected(kind, context_tokens)
        self._engine_of[trajectory_id] = engine_id

    def release(self, trajectory_id: TrajectoryId, kind: str, final_tokens: int) -> None:
        """The trajectory has ended with this context length."""
        self._forget(trajectory_id)
        self._history.add(kind, final_tokens)

    def observe(self, engine_id: EngineId, preemptions: int) -> None:
        """Adapt an engine's share to the preemptions it has counted since its start."""
        kv = self._kv.get(engine_id)
        if kv is None:
            return
        factor = _BACK_OFF if preemptions > kv.preemptions else _RECOVERY
        kv.preemptions = preemptions
        kv.fill = min(self._fill, max(min(_LOWEST_FILL, self._fill), kv.fill * factor))

    def _forget(self, trajectory_id: TrajectoryId) -> None:
        engine_id = self._engine_of.pop(trajectory_id, None)
        if engine_id is not None:
            del self._kv[engine_id].held[trajectory_id]
