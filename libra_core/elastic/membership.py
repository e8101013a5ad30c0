"""Where a hybrid replica stands between serving and training. Pure: a signal goes in, a new value comes out.

```
serving ─join─► draining ─drained─► snapshot ─restored─► replay ─activated─► active
   ▲               │                 │ │ ▲                 │                   │
   └─────serves────┤                 │ └─┼──────leave──────┴──────leave────────┤
   └─────serves────┼── leaving ◄─────┘   │                                     │ died
   │               │      └────rejoin────┘                                     ▼
   └─────serves────┴───────────────────────────────────────────────────────  failed
```
Snapshot and replay together are joining (docs/elasticity.md#protocol). An epoch is one attempt to join: whatever was sent in an
earlier one is stale, so that late, repeated and reordered signals change nothing. Deadlines are those of the actions that the
pool waits for (`runtime/cluster/hybrid_pool.py`); a state has none of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class MemberState(StrEnum):
    SERVING = "serving"
    DRAINING = "draining"
    """Still an engine, takes nothing; its trajectories finish or move."""
    SNAPSHOT = "snapshot"
    """The engine is gone, the replica waits for a snapshot of the core."""
    REPLAY = "replay"
    """It holds a snapshot and applies the gradients published since."""
    ACTIVE = "active"
    LEAVING = "leaving"
    """No member any more; the engine starts, with the newest weights."""
    FAILED = "failed"


class Signal(StrEnum):
    JOIN = "join"
    DRAINED = "drained"
    RESTORED = "restored"
    ACTIVATED = "activated"
    LEAVE = "leave"
    REJOIN = "rejoin"
    """It was asked to leave, which cannot be taken back: it joins anew."""
    SERVES = "serves"
    DIED = "died"
    """The core went on without it, or its process is gone."""


_S, _G = MemberState, Signal
NEXT: Mapping[tuple[MemberState, Signal], MemberState] = {
    (_S.SERVING, _G.JOIN): _S.DRAINING,
    (_S.DRAINING, _G.DRAINED): _S.SNAPSHOT,
    (_S.DRAINING, _G.SERVES): _S.SERVING,
    (_S.SNAPSHOT, _G.RESTORED): _S.REPLAY,
    (_S.SNAPSHOT, _G.LEAVE): _S.LEAVING,
    (_S.REPLAY, _G.ACTIVATED): _S.ACTIVE,
    (_S.REPLAY, _G.LEAVE): _S.LEAVING,
    (_S.ACTIVE, _G.LEAVE): _S.LEAVING,
    (_S.ACTIVE, _G.DIED): _S.FAILED,
    (_S.LEAVING, _G.REJOIN): _S.SNAPSHOT,
    (_S.LEAVING, _G.SERVES): _S.SERVING,
    (_S.FAILED, _G.SERVES): _S.SERVING,
}
"""Any other signal does not fit the state, and changes nothing."""
_NEW_EPOCH = frozenset({(_S.SERVING, _G.JOIN), (_S.LEAVING, _G.REJOIN), (_S.FAILED, _G.SERVES)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One hybrid replica."""

    state: MemberState = MemberState.SERVING
    epoch: int = 0
    active_from: int | None = None
    """The first step that it takes part in, once it is active."""

    def after(self, signal: Signal, epoch: int, step: int | None = None) -> "Member":
        """`epoch`: the one that the sender knew of when it began. `step`: with `ACTIVATED`."""
        target = NEXT.get((self.state, signal))
        if target is None or epoch != self.epoch:
            return self
        return replace(
            self,
            state=target,
            epoch=self.epoch + ((self.state, signal) in _NEW_EPOCH),
            active_from=step if target is MemberState.ACTIVE else None,
        )

    @property
    def joining(self) -> bool:
        return self.state in (MemberState.SNAPSHOT, MemberState.REPLAY)
