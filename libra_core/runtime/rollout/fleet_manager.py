"""Keeps the fleet at strength and on the newest weights: publication, replacement of lost engines, the broadcast group.

What an engine is and what follows from an event is `engine_state`'s; here the effects are performed.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from libra_core.config import LibraConfig
from libra_core.errors import DeadlineError, EngineLostError, LibraError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.background import Changes
from libra_core.runtime.base.rpc import GRACE_S, ActorHandle, first_line, reply
from libra_core.runtime.rollout.engine_state import (
    Answer,
    Drained,
    Effect,
    Engines,
    EngineState,
    Event,
    Failed,
    Forget,
    GivenUp,
    Loaded,
    Offered,
    PublicationBegan,
    PublicationEnded,
    Replace,
    ReplacementEnded,
    Serve,
    Withdraw,
    Withdrawn,
)
from libra_core.runtime.rollout.fleet import EngineMember, Fleet
from libra_core.runtime.rollout.kv_budget import ContextHistory, KvLedger
from libra_core.runtime.rollout.router import FleetRouter
from libra_core.runtime.rollout.weights import (
    GONE,
    BroadcastRound,
    EngineCalls,
    PublicationOrder,
    WeightLoads,
    load_weights,
    worst_mismatch,
)
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication, EngineStats

logger = logging.getLogger(__name__)

_ABORT_AGAIN_S = 0.5
"""A request that was on its way to the engine when it aborted all is in none of them."""
Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Start background work that its owner cancels at shut-down and whose failure its owner reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """An engine that left the fleet."""

    requests: int
    """In work on it when it was withdrawn."""
    seconds: float


class FleetManager:
    """Owned by the coordinator's event loop.

    An engine joins only after it has the newest weights: by file at once, by broadcast with the next publication, which
    `waiting_for_weights` asks for. Publications and joins exclude each other, and no engine leaves between `begin_publication`
    and `end_publication`.
    """

    def __init__(
        self,
        config: LibraConfig,
        controller: ActorHandle,
        spawn: Spawn,
        record: Callable[[str, str, float, float], None],
        router: FleetRouter,
    ) -> None:
        self._config = config
        self._controller = controller
        self._spawn = spawn
        self._record = record
        self._publication = asyncio.Lock()
        """Publications and joins exclude each other: an engine that joined between its load and the next order would serve old
        weights, or be loaded twice at once."""
        self._last_order: PublicationOrder | None = None
        self._engines = Engines()
        self._known: dict[EngineId, EngineMember] = {}
        """How to reach those that were offered."""
        self._joins: dict[EngineId, asyncio.Future[None]] = {}
        """Of engines that somebody waits for."""
        self._changes = Changes()
        self.round = BroadcastRound(self._fail)
        self._loads = WeightLoads(config, record, self._fail)
        self._verified: tuple[PolicyVersion, tuple[float, ...]] | None = None
        """Newest version that an engine scored the canary under, and its scores."""
        self._router = router
        self.failure: str | None = None
        """Why engines could not be brought."""
        rollout = config.rollout
        history = ContextHistory(prior_tokens=(rollout.max_context_tokens + rollout.max_new_tokens) / 2)
        self.ledger = KvLedger(fill=math.inf if rollout.kv_fill is None else rollout.kv_fill, history=history)
        self.fleet = Fleet(
            policy=router,
            ledger=self.ledger,
            history=history,
            queue_order=rollout.queue_order,
            turn_deadline_s=rollout.turn_deadline_s,
            refill_deadline_s=rollout.engine_start_deadline_s,
            on_lost=self._fail,
            degrees=router.degrees,
            max_num_seqs=rollout.max_num_seqs,
            on_move=router.note_move,
            on_idle=self._changes.ring,
        )
        self._calls = EngineCalls(self._fail)

    @property
    def waiting_for_weights(self) -> bool:
        """No engine serves, but a replacement would after another broadcast."""
        return self._any(EngineState.WAITING_FOR_WEIGHTS) and not self.fleet.members

    @property
    def hopeless(self) -> str | None:
        """Why no engine will come; None while one may."""
        return None if self._any(EngineState.WAITING_FOR_WEIGHTS, EngineState.LOST) else self.failure

    def members(self) -> list[EngineMember]:
        """Engines of the next publication, the waiting ones included."""
        waiting = self._engines.that_are(EngineState.WAITING_FOR_WEIGHTS)
        return [*self.fleet.ordered(), *(self._known[engine_id] for engine_id in waiting)]

    def start_with(self, engines: Sequence[StartedEngine]) -> None:
        """Those of the run's start, which all have the start weights."""
        for engine in engines:
            self._join(EngineMember.of(engine), None)

    def expect(self, degrees: Collection[int], within_s: float) -> None:
        """Engines of these degrees serve or will; while none does, up to this time from now, turns and publications wait."""
        self.fleet.expected_until_s = time.monotonic() + within_s
        self.fleet.degrees = self._router.use_degrees({*degrees, *(member.tp for member in self.members())})
        self._changes.ring()

    async def begin_publication(self, token: int, wait_s: float) -> bool:
        """Waits for an engine that is expected; False when none has come within `wait_s`. Else no engine leaves until the end."""

        def has_whom_to_send_to() -> bool:
            return bool(self.members()) or not self.fleet.expects_engines

        expected_s = max(0.0, self.fleet.expected_until_s - time.monotonic())
        await self._changes.until(has_whom_to_send_to, min(wait_s, expected_s))
        if not has_whom_to_send_to():
            return False
        self._apply(PublicationBegan(token=token))
        return True

    def end_publication(self, token: int) -> None:
        """Idempotent, also for one that never began."""
        self._apply(PublicationEnded(token=token))

    async def publish(self, order: PublicationOrder) -> list[EnginePublication]:
        """Swap the weights of every engine; one that fails at it is replaced."""
        async with self._publication:
            self._last_order = order
            members = self.members()
            if not self._config.weights_by_file:  # the others came after the group was formed
                members = [member for member in members if member in self.round.members]
            whole = self.round.verdict() if members and not self._config.weights_by_file else None
            results = await self._loads.load_all(members, order)
            for member, result in zip(members, results, strict=True):
                if result is not None:
                    self._apply(Loaded(engine_id=member.engine_id, version=order.version))
            if whole is not None:
                await self._loads.judge(whole)
        return [result for result in results if result is not None]

    async def retire(self, engine_id: EngineId, deadline_s: float) -> Handover:
        """Take an engine out of service: its trajectories go on elsewhere, from the tokens they have.

        Waits for publications. Idempotent: an engine that is no member has nothing to hand over.

        Raises:
            DeadlineError: it still had requests after the deadline; it stays out of service.
        """
        started_s = time.monotonic()
        await self._withdraw(engine_id, self._config.publishing_s)
        if self._engines.state(engine_id) is not EngineState.DRAINING:
            return Handover(requests=0, seconds=time.monotonic() - started_s)
        member = self._known[engine_id]
        requests = member.running
        try:
            await self._emptied(member, deadline_s)
        finally:
            self._apply(Drained(engine_id=engine_id))
        now_s = time.time()
        self._record("handed over", engine_id, now_s - (time.monotonic() - started_s), now_s)
        return Handover(requests=requests, seconds=time.monotonic() - started_s)

    async def _withdraw(self, engine_id: EngineId, deadline_s: float) -> None:
        end_s = time.monotonic() + deadline_s
        while True:
            async with self._publication:
                if self._engines.may_leave:
                    self._apply(Withdrawn(engine_id=engine_id))
                    return
            # Not inside the lock: the publication that is waited for takes it.
            if not await self._changes.until(lambda: self._engines.may_leave, end_s - time.monotonic()):
                raise DeadlineError(f"{engine_id} waited {deadline_s:.0f} s for the publication in work, and serves on")

    async def _emptied(self, member: EngineMember, deadline_s: float) -> None:
        """Have a withdrawn engine return what it works on; one that died has lost that, and its trajectories know.

        Raises:
            DeadlineError: it still had requests then.
        """
        end_s = time.monotonic() + deadline_s
        while member.running:
            left_s = end_s - time.monotonic()
            if left_s < 0:
                raise DeadlineError(
                    f"{member.engine_id} still has {member.running} requests {deadline_s:.0f} s after it was withdrawn"
                )
            with suppress(RayError, TimeoutError):
                await asyncio.wait_for(member.handle.abort_all.remote(), left_s)
            await self._changes.until(lambda: not member.running, min(left_s, _ABORT_AGAIN_S))

    async def admit(self, engine: StartedEngine, canary: tuple[int, ...]) -> None:
        """Load the newest weights, compare the canary, and let it serve; by broadcast with the next publication. Idempotent.

        Raises:
            EngineLostError: it died or did not take the weights.
            NumericsError: it does not score the canary as the others do.
            DeadlineError: there was no publication.
        """
        engine_id, member = engine.engine_id, EngineMember.of(engine)
        async with self._publication:
            if self._engines.state(engine_id) is EngineState.SERVING:
                return
            if self._config.weights_by_file or self._last_order is None:
                if self._last_order is not None:
                    await load_weights(member, self._last_order, self._config.publication)
                await self._compare(member, canary)
                self._join(member, self._last_order)
                return
            self._offer(member, awaited=True)
        await self._joined(engine_id)

    async def _joined(self, engine_id: EngineId) -> None:
        """Wait until it has weights; one that has not within `elastic.join_s` waits no longer.

        Raises:
            EngineLostError: it took none, or was withdrawn.
            DeadlineError: there was no publication.
        """
        join_s = self._config.elastic.join_s
        joining = self._joins.setdefault(engine_id, asyncio.get_running_loop().create_future())
        try:
            await asyncio.wait_for(asyncio.shield(joining), join_s)
        except TimeoutError:
            self._apply(GivenUp(engine_id=engine_id))
            self._joins.pop(engine_id, None)
            raise DeadlineError(
                f"{engine_id} waited {join_s:.0f} s (elastic.join_s) for the next broadcast of weights; raise it above the "
                "time of an iteration"
            ) from None

    async def _compare(self, member: EngineMember, canary: tuple[int, ...]) -> None:
        """The others were compared with the trainer when these weights were published; their scores of then outlive them."""
        publication, others, order = self._config.publication, self.fleet.ordered(), self._last_order
        if not publication.canary or order is None:
            return
        known = self._verified[1] if self._verified is not None and self._verified[0] == order.version else None
        if not others and known is None:
            return
        what, deadline_s = f"{member.engine_id} to score the canary", publication.deadline_s
        try:
            scores = await reply("the rollout coordinator", what, member.handle.score.remote(canary), deadline_s)
        except GONE as error:
            raise EngineLostError(f"{member.engine_id} could not be compared with the engines before it: {error}") from error
        expected = known or await self._calls.first(
            others, "score the canary", lambda engine: engine.score.remote(canary), deadline_s
        )
        if expected is None:  # none of them is left to disagree with
            return
        worst_mismatch({member.engine_id: scores}, expected, self._config.canary_tolerance, order.version)

    async def hold(self) -> None:
        """Stop generation on every engine; the next publication ends it. An engine that fails at it is replaced."""
        deadline_s = self._config.publication.deadline_s
        await self._calls.each(self.fleet.ordered(), "hold", lambda engine: engine.hold.remote(), deadline_s)

    async def canary(self, token_ids: tuple[int, ...]) -> dict[EngineId, tuple[float, ...]]:
        """Log-probs of the same tokens from every engine that lives; one that dies or hangs at it is replaced."""
        deadline_s = self._config.publication.deadline_s
        async with self._publication:  # else an engine could leave, and stop, while it scores
            scores: dict[EngineId, tuple[float, ...]] = await self._calls.each(
                self.fleet.ordered(), "score the canary", lambda engine: engine.score.remote(token_ids), deadline_s
            )
            if scores and self._last_order is not None:
                self._verified = (self._last_order.version, next(iter(scores.values())))
        return scores

    async def stats(self) -> list[EngineStats]:
        """Of the engines that answer; one that does not within the time of a turn is replaced, as one that returns no turn is.

        Each look also adapts their KV share to the preemptions seen.
        """
        members, deadline_s = self.fleet.ordered(), self._config.rollout.turn_deadline_s
        answers = await self._calls.each(members, "give statistics", lambda engine: engine.stats.remote(), deadline_s)
        stats: list[EngineStats] = list(answers.values())
        for engine in stats:
            self.ledger.observe(engine.engine_id, engine.preemptions)
        return stats

    async def _bring_replacement(self, lost: EngineId) -> None:
        """Waits for the controller to start an engine in the same place; none comes where the plan has none any more."""
        what = f"the cluster controller to replace {lost}"
        asked = self._controller.replace_engine.remote(lost)
        try:
            started: StartedEngine | None = await reply("the fleet", what, asked, self._config.replacement_s + GRACE_S)
            if started is not None:
                await self._take(EngineMember.of(started))
        except (RayError, LibraError) as error:
            logger.exception("no replacement for %s", lost)
            self.failure = f"{lost} could not be replaced: {first_line(error)}"
        finally:
            self._apply(ReplacementEnded(engine_id=lost))

    async def _take(self, member: EngineMember) -> None:
        """A replacement."""
        async with self._publication:
            order = self._last_order
            if not self._config.weights_by_file and order is not None:
                self._offer(member, awaited=False)
            elif self._engines.state(member.engine_id) is EngineState.STOPPED:  # it was withdrawn before it came
                return
            elif order is None or await self._loads.load(member, order) is not None:
                self._join(member, order)
            else:
                self.failure = f"{member.engine_id}, a replacement, took no weights"

    def _offer(self, member: EngineMember, *, awaited: bool) -> None:
        self._known[member.engine_id] = member
        self._apply(Offered(engine_id=member.engine_id, awaited=awaited))

    def _join(self, member: EngineMember, order: PublicationOrder | None) -> None:
        """One that has the newest weights."""
        self._offer(member, awaited=True)
        self._apply(Loaded(engine_id=member.engine_id, version=order.version if order is not None else None))

    def _fail(self, engine_id: EngineId, reason: str) -> None:
        if self._engines.state(engine_id) not in (EngineState.SERVING, EngineState.WAITING_FOR_WEIGHTS):
            logger.warning("%s", reason)  # lost or withdrawn before, or never offered
        self._apply(Failed(engine_id=engine_id, reason=reason))

    def _any(self, *states: EngineState) -> bool:
        return any(True for _ in self._engines.that_are(*states))

    def _apply(self, event: Event) -> None:
        self._engines, effects = self._engines.after(event)
        for effect in effects:
            self._perform(effect)
        self._changes.ring()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Serve(engine_id=engine_id):
                self.fleet.add(self._known[engine_id])
            case Withdraw(engine_id=engine_id):
                self.fleet.withdraw(engine_id)
            case Forget(engine_id=engine_id):
                self.fleet.drop(engine_id)
            case Replace(engine_id=engine_id, reason=reason):
                logger.warning("%s; it is replaced", reason)
                self._record(f"lost: {reason}", engine_id, time.time(), time.time())
                self._spawn(self._bring_replacement(engine_id))
            case Answer(engine_id=engine_id, error=error):
                _resolve(self._joins.pop(engine_id, None), error)


def _resolve(joining: "asyncio.Future[None] | None", error: str) -> None:
    if joining is None or joining.done():
        return
    if not error:
        joining.set_result(None)
        return
    joining.set_exception(EngineLostError(error))
    joining.exception()  # nobody may be waiting any more
