"""Where a hybrid replica stands between serving and training. Pure: a signal goes in, a new value comes out.

```
serving ─join─► draining ─drained─► joining ─activated─► active
   ▲               │                 │ │ ▲                 │ │
   ├─────serves────┴─────────────────┘ │ └──rejoin──┐      │ │ died
   │                                   └──leave─► leaving ◄┘ ▼
   └─────serves────────────────────────────────────┴───── failed
```
A joining replica restores a snapshot and replays gradients (docs/elasticity.md#protocol); its own process keeps that order
(`elastic/follower.py`). An epoch is one attempt to join: whatever was sent in an
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
    JOINING = "joining"
    """The engine has given its devices to a replica, which the core does not count on yet."""
    ACTIVE = "active"
    LEAVING = "leaving"
    """No member any more; the engine starts, with the newest weights."""
    FAILED = "failed"


class Signal(StrEnum):
    JOIN = "join"
    DRAINED = "drained"
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
    (_S.DRAINING, _G.DRAINED): _S.JOINING,
    (_S.DRAINING, _G.SERVES): _S.SERVING,
    (_S.JOINING, _G.ACTIVATED): _S.ACTIVE,
    (_S.JOINING, _G.LEAVE): _S.LEAVING,
    (_S.JOINING, _G.SERVES): _S.SERVING,
    (_S.ACTIVE, _G.LEAVE): _S.LEAVING,
    (_S.ACTIVE, _G.DIED): _S.FAILED,
    (_S.LEAVING, _G.REJOIN): _S.JOINING,
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
