"""The coordinator's view of the engines: handles, loads, places, losses. Lives inside one event loop."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ray.exceptions import RayActorError, RayTaskError

from libra_core.errors import EngineLostError
from libra_core.ports.routing import EngineLoad, FinishedTrajectory, RoutingPolicy, TurnContext
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.rpc import ActorHandle, first_line
from libra_core.runtime.rollout.kv_budget import ContextHistory, KvLedger
from libra_core.types.ids import EngineId, TrajectoryId
from libra_core.types.trajectory import GeneratedTurn, GenerationRequest


@dataclass(slots=True, kw_only=True)
class EngineMember:
    """One engine as the coordinator knows it."""

    engine_id: EngineId
    tp: int
    kv_tokens: int
    handle: ActorHandle
    bound: int = 0
    """Trajectories that hold a place on it."""
    running: int = 0
    """Requests in work on it."""

    @classmethod
    def of(cls, engine: StartedEngine) -> "EngineMember":
        return cls(engine_id=engine.engine_id, tp=engine.tp, kv_tokens=engine.kv_tokens, handle=engine.handle)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    turn: TurnContext
    bound: "asyncio.Future[EngineMember]"


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Binds trajectories to engines, late and within each engine's KV share.

    Owned by the coordinator's event loop. A trajectory keeps its place from `bind` to `release`, through its tool calls; one
    without a place waits in a queue and is unblocked by a release or by an engine that joins. Which engines there are is for the
    fleet manager to say: it calls `add`, `withdraw` and `drop`, and hears by `on_lost` of one that died or hangs. While engines
    are replaced on purpose none may serve: `expected_until_s` says how long that is no loss.
    """

    policy: RoutingPolicy
    ledger: KvLedger
    history: ContextHistory
    queue_order: Literal["fifo", "longest_first"]
    turn_deadline_s: float
    refill_deadline_s: float
    """How long a turn waits when no engine is alive and none is expected."""
    on_lost: Callable[[EngineId, str], None]
    degrees: Sequence[int] = (1,)
    """Tensor-parallel degrees, ascending; the engines of each form a bucket."""
    max_num_seqs: int | None = None
    """Trajectories that one engine decodes at once."""
    on_move: Callable[[TurnContext], None] = lambda _turn: None
    """A trajectory whose engine is alive goes on on another one."""
    on_idle: Callable[[], None] = lambda: None
    """An engine has returned its last request."""
    members: dict[EngineId, EngineMember] = field(default_factory=dict[EngineId, EngineMember])
    leaving: dict[EngineId, EngineMember] = field(default_factory=dict[EngineId, EngineMember])
    """Withdrawn, and able to hand over what they hold."""
    expected_until_s: float = 0.0
    """On the monotonic clock."""
    _queue: list[_Waiting] = field(default_factory=list[_Waiting])

    @property
    def queued(self) -> int:
        """Trajectories without a place."""
        return len(self._queue)

    @property
    def expects_engines(self) -> bool:
        """Whether somebody has promised engines, so that having none is no reason to give up."""
        return time.monotonic() < self.expected_until_s

    def add(self, member: EngineMember) -> None:
        self.members[member.engine_id] = member
        self.ledger.add_engine(member.engine_id, member.kv_tokens)
        self._serve_queue()

    def drop(self, engine_id: EngineId) -> None:
        """It holds nothing any more: places on it are void, and nobody can be handed what it held."""
        if self.members.pop(engine_id, None) is not None:
            self.ledger.remove_engine(engine_id)
        self.leaving.pop(engine_id, None)

    def withdraw(self, engine_id: EngineId) -> EngineMember | None:
        """Give it no more turns: trajectories that held a place on it bind elsewhere with their next turn.

        None when it is no member. Its requests run on until their engine is asked for what they have.
        """
        member = self.members.pop(engine_id, None)
        if member is not None:
            self.ledger.remove_engine(engine_id)
            member.bound = 0
            self.leaving[engine_id] = member
        return member

    def source(self, engine_id: EngineId) -> EngineMember | None:
        """Whoever can hand over what the engine holds; it need not take turns any more."""
        return self.members.get(engine_id) or self.leaving.get(engine_id)

    def foresee(self, turn: TurnContext) -> EngineMember | None:
        """Where the trajectory would move if the tool that it has just called told nothing new; None where it would stay."""
        home = self.ledger.engine_of(turn.trajectory_id)
        if home is None or home != turn.current:
            return None
        chosen = self._choose(turn, home)
        return None if chosen is None or chosen.engine_id == home else chosen

    async def bind(self, turn: TurnContext) -> EngineMember:
        """A place for the turn: at once when an engine has room, else when one frees.

        Raises:
            EngineLostError: no engine was alive for `refill_deadline_s`.
        """
        member = self._place(turn)
        if member is not None:
            return member
        waiting = _Waiting(turn=turn, bound=asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        try:
            return await self._wait_for_place(waiting)
        finally:
            # Also when its trajectory is cancelled: a place that is given to one that is gone is given back by nobody.
            if waiting in self._queue:
                self._queue.remove(waiting)

    def release(
        self, trajectory_id: TrajectoryId, kind: str, final_tokens: int, finished: FinishedTrajectory | None = None
    ) -> None:
        """The trajectory has ended; its place goes to the next in the queue.

        `finished` is what there is to learn from it, None when infrastructure ended it.
        """
        if finished is None:
            self.policy.forget(trajectory_id)
        else:
            self.policy.learn(finished)
        member = self.members.get(self.ledger.engine_of(trajectory_id) or EngineId(""))
        if member is not None:
            member.bound -= 1
        self.ledger.release(trajectory_id, kind, final_tokens)
        self._serve_queue()

    async def generate(self, member: EngineMember, request: GenerationRequest) -> GeneratedTurn:
        """One turn on one engine; raises `EngineLostError` after telling of an engine that died or hangs."""
        member.running += 1
        try:
            async with asyncio.timeout(self.turn_deadline_s):
                return await member.handle.generate.remote(request)
        except RayActorError as error:
            reason = f"died: {first_line(error)}"
        except RayTaskError as error:
            if not isinstance(error.cause, EngineLostError):
                raise
            reason = str(error.cause)
        except TimeoutError:
            reason = f"returned no turn within {self.turn_deadline_s:.0f} s for request {request.request_id}"
        finally:
            member.running -= 1
            if not member.running:
                self.on_idle()
        sentence = f"{member.engine_id} {reason}"
        self.on_lost(member.engine_id, sentence)
        raise EngineLostError(sentence)

    def ordered(self) -> Sequence[EngineMember]:
        return [self.members[key] for key in sorted(self.members)]

    async def _wait_for_place(self, waiting: _Waiting) -> EngineMember:
        """With engines alive a place frees sooner or later: every turn that holds one has a deadline."""
        while True:
            try:
                # Shielded: `wait_for` cancels what it waits for, and a cancelled entry of the queue is never served.
                return await asyncio.wait_for(asyncio.shield(waiting.bound), self.refill_deadline_s)
            except TimeoutError:
                if not self.members and not self.expects_engines:
                    raise EngineLostError(
                        f"trajectory {waiting.turn.trajectory_id} waited {self.refill_deadline_s:.0f} s for a replacement "
                        "engine; no engine of the fleet is alive"
                    ) from None

    def _place(self, turn: TurnContext) -> EngineMember | None:
        if turn.current is not None and turn.current not in self.members:
            turn = replace(turn, current=None)
        home = self.ledger.engine_of(turn.trajectory_id)
        chosen = self._choose(turn, home)
        if chosen is None:
            return None
        if chosen.engine_id != home:
            chosen.bound += 1
            if home is not None:
                self.members[home].bound -= 1
                self.on_move(turn)
        self.ledger.bind(turn.trajectory_id, chosen.engine_id, turn.kind, turn.context_tokens)
        return chosen

    def _choose(self, turn: TurnContext, home: EngineId | None) -> EngineMember | None:
        """The policy's choice among the engines with room; a trajectory that has a place always has room there.

        Of equal engines the one that has computed the context ahead is taken.
        """
        open_engines = [
            member
            for member in self.members.values()
            if member.engine_id == home or self.ledger.has_room(member.engine_id, turn.kind, turn.context_tokens)
        ]
        if not open_engines:
            return None
        chosen = self.members[self.policy.choose(turn, [self._load(member) for member in open_engines])]
        prepared = self.members.get(turn.prepared) if turn.prepared is not None else None
        if prepared in open_engines and chosen.engine_id != home and prepared.tp == chosen.tp:
            return prepared
        return chosen

    def _load(self, member: EngineMember) -> EngineLoad:
        return EngineLoad(
            engine_id=member.engine_id,
            tp=member.tp,
            in_flight=member.bound,
            bucket=self.degrees.index(member.tp),
            capacity=self.max_num_seqs,
        )

    def _serve_queue(self) -> None:
        """Bind waiting trajectories in order until one finds no room."""
        for waiting in sorted(self._queue, key=self._rank):
            if waiting.bound.done():
                continue
            member = self._place(waiting.turn)
            if member is None:
                return  # a shorter one behind it would fit, and the next, and the long one would wait for the end of them all
            waiting.bound.set_result(member)

    def _rank(self, waiting: _Waiting) -> tuple[float, int]:
        turn = waiting.turn
        if self.queue_order == "fifo":
            return (0.0, turn.order)
        return (-self.history.expected(turn.kind, turn.context_tokens), turn.order)
