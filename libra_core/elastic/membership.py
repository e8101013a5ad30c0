"""Where a hybrid replica stands between serving and training. Pure: messages and the time go in, a new value comes out.

```
serving ─join─► draining ─drained─► snapshot ─restored─► replay ─activated─► active
   ▲  ◄─cancel──────┘                  ▲  ◄─────refetch─────┴────refetch───────┤
   └──served── leaving ◄──leave────────┴──────────────────────────────leave────┘      any ─died─► failed ─recovered─► serving
```
Snapshot and replay together are joining (docs/elasticity.md#protocol). An epoch is one attempt to join: whatever was sent in an
earlier one is stale, so that late, repeated and reordered messages change nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
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


class Role(StrEnum):
    """What the GPUs of a member count for."""

    ROLLOUT = "rollout"
    TRAINING = "training"
    MOVING = "moving"
    LOST = "lost"


class Owner(StrEnum):
    """Who alone sends a signal."""

    CONTROLLER = "controller"
    REPLICA = "replica"
    CORE = "core"
    CLOCK = "clock"


class Signal(StrEnum):
    JOIN = "join"
    CANCEL = "cancel"
    DRAINED = "drained"
    RESTORED = "restored"
    ACTIVATED = "activated"
    REFETCH = "refetch"
    """Too far behind, or parameters that differ: a fresh snapshot is needed."""
    LEAVE = "leave"
    SERVED = "served"
    DROPPED = "dropped"
    """Its contribution was not complete within the deadline."""
    DIED = "died"
    RECOVERED = "recovered"
    EXPIRED = "expired"
    """The state's deadline passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One allowed step. `inverse`: the signals that lead from `target` back to `source`."""

    source: State
    signal: Signal
    target: State
    owner: Owner
    inverse: tuple[Signal, ...]


_S, _G, _O = State, Signal, Owner
_ROLE: Mapping[State, Role] = {
    _S.SERVING: Role.ROLLOUT,
    _S.DRAINING: Role.ROLLOUT,
    _S.SNAPSHOT: Role.MOVING,
    _S.REPLAY: Role.MOVING,
    _S.ACTIVE: Role.TRAINING,
    _S.LEAVING: Role.MOVING,
    _S.FAILED: Role.LOST,
}
_NEW_EPOCH = frozenset({_G.JOIN, _G.REFETCH, _G.RECOVERED})


def _edge(source: State, signal: Signal, target: State, owner: Owner, *inverse: Signal) -> Edge:
    return Edge(source=source, signal=signal, target=target, owner=owner, inverse=inverse)


_REJOIN = (_G.JOIN, _G.DRAINED)
EDGES: tuple[Edge, ...] = (
    _edge(_S.SERVING, _G.JOIN, _S.DRAINING, _O.CONTROLLER, _G.CANCEL),
    _edge(_S.DRAINING, _G.CANCEL, _S.SERVING, _O.CONTROLLER, _G.JOIN),
    _edge(_S.DRAINING, _G.EXPIRED, _S.SERVING, _O.CLOCK, _G.JOIN),
    _edge(_S.DRAINING, _G.DRAINED, _S.SNAPSHOT, _O.REPLICA, _G.LEAVE, _G.SERVED, _G.JOIN),
    _edge(_S.SNAPSHOT, _G.RESTORED, _S.REPLAY, _O.REPLICA, _G.REFETCH),
    _edge(_S.SNAPSHOT, _G.REFETCH, _S.SNAPSHOT, _O.CORE),
    _edge(_S.SNAPSHOT, _G.LEAVE, _S.LEAVING, _O.CONTROLLER, _G.SERVED, *_REJOIN),
    _edge(_S.SNAPSHOT, _G.EXPIRED, _S.LEAVING, _O.CLOCK, _G.SERVED, *_REJOIN),
    _edge(_S.REPLAY, _G.REFETCH, _S.SNAPSHOT, _O.CORE, _G.RESTORED),
    _edge(_S.REPLAY, _G.ACTIVATED, _S.ACTIVE, _O.CORE, _G.REFETCH, _G.RESTORED),
    _edge(_S.REPLAY, _G.LEAVE, _S.LEAVING, _O.CONTROLLER, _G.SERVED, *_REJOIN, _G.RESTORED),
    _edge(_S.REPLAY, _G.EXPIRED, _S.LEAVING, _O.CLOCK, _G.SERVED, *_REJOIN, _G.RESTORED),
    _edge(_S.ACTIVE, _G.REFETCH, _S.SNAPSHOT, _O.CORE, _G.RESTORED, _G.ACTIVATED),
    _edge(_S.ACTIVE, _G.LEAVE, _S.LEAVING, _O.CONTROLLER, _G.SERVED, *_REJOIN, _G.RESTORED, _G.ACTIVATED),
    _edge(_S.ACTIVE, _G.DROPPED, _S.FAILED, _O.CORE, _G.RECOVERED, *_REJOIN, _G.RESTORED, _G.ACTIVATED),
    _edge(_S.LEAVING, _G.SERVED, _S.SERVING, _O.REPLICA, *_REJOIN, _G.LEAVE),
    _edge(_S.LEAVING, _G.EXPIRED, _S.FAILED, _O.CLOCK, _G.RECOVERED, *_REJOIN, _G.LEAVE),
    _edge(_S.SERVING, _G.DIED, _S.FAILED, _O.CORE, _G.RECOVERED),
    _edge(_S.DRAINING, _G.DIED, _S.FAILED, _O.CORE, _G.RECOVERED, _G.JOIN),
    _edge(_S.SNAPSHOT, _G.DIED, _S.FAILED, _O.CORE, _G.RECOVERED, *_REJOIN),
    _edge(_S.REPLAY, _G.DIED, _S.FAILED, _O.CORE, _G.RECOVERED, *_REJOIN, _G.RESTORED),
    _edge(_S.ACTIVE, _G.DIED, _S.FAILED, _O.CORE, _G.RECOVERED, *_REJOIN, _G.RESTORED, _G.ACTIVATED),
    _edge(_S.LEAVING, _G.DIED, _S.FAILED, _O.CORE, _G.RECOVERED, *_REJOIN, _G.LEAVE),
    _edge(_S.FAILED, _G.RECOVERED, _S.SERVING, _O.CONTROLLER, _G.DIED),
)
"""A death is seen by whoever holds the connection or the process; the core stands for both."""
_BY_SIGNAL: Mapping[tuple[State, Signal], Edge] = {(edge.source, edge.signal): edge for edge in EDGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that a member may stay in a state; serving, active and failed have none.

    An active member is bounded by the core instead, which waits `ElasticSpec.contribution_s` for it in each step, then drops it.
    """

    drain_s: float = 120.0
    snapshot_s: float = 120.0
    replay_s: float = 300.0
    leave_s: float = 300.0

    def of(self, state: State) -> float | None:
        limits = {
            _S.DRAINING: self.drain_s,
            _S.SNAPSHOT: self.snapshot_s,
            _S.REPLAY: self.replay_s,
            _S.LEAVING: self.leave_s,
        }
        return limits.get(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A signal about one member; whoever sends it states the epoch that it knows of."""

    slot: int
    epoch: int
    signal: Signal
    step: int | None = None
    """With `ACTIVATED`: the first step that it takes part in."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One hybrid replica. `slot` is its number in the pool and never changes."""

    slot: int
    gpus: int
    state: State = State.SERVING
    epoch: int = 0
    since_s: float = 0.0
    active_from: int | None = None
    reason: str = ""
    """Why it failed or gave up, for people."""

    @property
    def role(self) -> Role:
        return _ROLE[self.state]

    @property
    def joining(self) -> bool:
        return self.state in (State.SNAPSHOT, State.REPLAY)

    def receive(self, message: Message, now_s: float) -> "Member":
        """The member after the message, or itself when the message is stale, repeated or not for this state.

        Nobody can send `EXPIRED`; only `expire`, which has looked at the clock, moves by it.
        """
        addressed = message.slot == self.slot and message.epoch == self.epoch and message.signal is not Signal.EXPIRED
        return self._move(message, now_s) if addressed else self

    def expire(self, deadlines: Deadlines, now_s: float) -> "Member":
        """The member after its state's deadline, if that has passed: back to serving where that is possible, else failed."""
        limit_s = deadlines.of(self.state)
        if limit_s is None or now_s - self.since_s < limit_s:
            return self
        reason = f"{self.state} for {now_s - self.since_s:.0f} s, at most {limit_s:.0f} s allowed"
        return self._move(Message(slot=self.slot, epoch=self.epoch, signal=Signal.EXPIRED, reason=reason), now_s)

    def _move(self, message: Message, now_s: float) -> "Member":
        edge = _BY_SIGNAL.get((self.state, message.signal))
        if edge is None:
            return self
        return replace(
            self,
            state=edge.target,
            epoch=self.epoch + (message.signal in _NEW_EPOCH),
            since_s=now_s,
            active_from=message.step if edge.target is State.ACTIVE else None,
            reason=message.reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All hybrid replicas of a run, in slot order."""

    members: tuple[Member, ...]
    deadlines: Deadlines = Deadlines()

    @classmethod
    def of(cls, *, replicas: int, gpus_each: int, deadlines: Deadlines | None = None) -> "Pool":
        members = tuple(Member(slot=slot, gpus=gpus_each) for slot in range(replicas))
        return cls(members=members, deadlines=deadlines or Deadlines())

    def receive(self, message: Message, now_s: float) -> "Pool":
        """Raises `IndexError` when the pool has no such slot."""
        members = list(self.members)
        members[message.slot] = members[message.slot].receive(message, now_s)
        return replace(self, members=tuple(members))

    def expire(self, now_s: float) -> "Pool":
        return replace(self, members=tuple(member.expire(self.deadlines, now_s) for member in self.members))

    @property
    def active(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.state is State.ACTIVE)

    def gpus(self) -> dict[Role, int]:
        """GPUs by what they are used for; the sum never changes."""
        return {role: sum(member.gpus for member in self.members if member.role is role) for role in Role}
