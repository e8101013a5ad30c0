"""The coordinator's view of the engines: handles, loads, losses. Lives inside one event loop."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from libra_core.errors import EngineLostError
from libra_core.ports.routing import EngineLoad, RoutingPolicy, TurnContext
from libra_core.types.ids import EngineId
from libra_core.types.trajectory import GeneratedTurn, GenerationRequest

ActorHandle = Any
"""A Ray actor handle; its methods are reached by `handle.name.remote(...)`, which no type can describe."""


@dataclass(slots=True, kw_only=True)
class EngineMember:
    """One engine as the coordinator knows it."""

    engine_id: EngineId
    tp: int
    handle: ActorHandle
    in_flight: int = 0


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Routes turns to engines and drops engines that die.

    Owned by the coordinator's event loop. `on_lost` is called once per lost engine; whoever replaces it calls `add`.
    """

    policy: RoutingPolicy
    turn_deadline_s: float
    refill_deadline_s: float
    """How long a turn waits for an engine when none is alive."""
    on_lost: Callable[[EngineMember, str], None]
    members: dict[EngineId, EngineMember] = field(default_factory=dict)
    _filled: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, member: EngineMember) -> None:
        self.members[member.engine_id] = member
        self._filled.set()

    def loads(self) -> list[EngineLoad]:
        return [EngineLoad(engine_id=m.engine_id, tp=m.tp, in_flight=m.in_flight) for m in self.members.values()]

    def lose(self, engine_id: EngineId, reason: str) -> None:
        member = self.members.pop(engine_id, None)
        if member is None:
            return
        if not self.members:
            self._filled.clear()
        self.on_lost(member, reason)

    async def bind(self, turn: TurnContext) -> EngineMember:
        """Choose an engine; waits for a replacement when all are lost."""
        if not self.members:
            try:
                await asyncio.wait_for(self._filled.wait(), self.refill_deadline_s)
            except TimeoutError:
                raise EngineLostError(
                    f"trajectory {turn.trajectory_id} waited {self.refill_deadline_s:.0f} s for a replacement engine; "
                    "no engine of the fleet is alive"
                ) from None
        return self.members[self.policy.choose(turn, self.loads())]

    async def generate(self, member: EngineMember, request: GenerationRequest) -> GeneratedTurn:
        """One turn on one engine; raises `EngineLostError` after dropping an engine that died or hangs."""
        member.in_flight += 1
        try:
            return await asyncio.wait_for(member.handle.generate.remote(request), self.turn_deadline_s)
        except TimeoutError:
            reason = f"returned no turn within {self.turn_deadline_s:.0f} s for request {request.request_id}"
        except RayActorError as error:
            reason = f"died: {first_line(error)}"
        except RayTaskError as error:
            if not isinstance(error.cause, EngineLostError):
                raise
            reason = str(error.cause)
        finally:
            member.in_flight -= 1
        sentence = f"{member.engine_id} {reason}"
        self.lose(member.engine_id, sentence)
        raise EngineLostError(sentence)

    def ordered(self) -> Sequence[EngineMember]:
        return [self.members[key] for key in sorted(self.members)]


def first_line(error: BaseException) -> str:
    """The message without Ray's traceback; of what a remote method raised rather than of Ray's wrapper."""
    if isinstance(error, RayTaskError) and error.cause is not None:
        return f"{type(error.cause).__name__}: {first_line(error.cause)}"
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
