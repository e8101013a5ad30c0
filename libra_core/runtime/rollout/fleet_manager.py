"""Keeps the fleet at strength and on the newest weights: publication, replacement of lost engines, the broadcast group."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from libra_core.config import LibraConfig
from libra_core.errors import DeadlineError, EngineLostError, LibraError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.rpc import GRACE_S, ActorHandle, first_line, reply
from libra_core.runtime.rollout.arrivals import Arrivals
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

_LOOK_S = 0.05
Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Start background work that its owner cancels at shut-down and whose failure its owner reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """An engine that left the fleet."""

    requests: int
    """In work on it when it was withdrawn."""
    seconds: float


class FleetKeeper:
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
        self._last_order: PublicationOrder | None = None
        self._arrivals = Arrivals(config.elastic.join_s)
        self.round = BroadcastRound(self._drop)
        self._loads = WeightLoads(config, record, self._drop)
        self._publishing: set[int] = set()
        """Begun and not ended; the second try of a publication begins before the first has ended."""
        self._retired: set[EngineId] = set()
        """A replacement that is among them came too late."""
        self._verified: tuple[PolicyVersion, tuple[float, ...]] | None = None
        """Newest version that an engine scored the canary under, and its scores."""
        self._router = router
        self._coming = 0
        """Replacements that the controller was asked for."""
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
            on_lost=self._replace,
            degrees=router.degrees,
            max_num_seqs=rollout.max_num_seqs,
            on_move=router.note_move,
        )
        self._calls = EngineCalls(self.fleet.lose)

    @property
    def waiting_for_weights(self) -> bool:
        """No engine serves, but a replacement would after another broadcast."""
        return bool(self._arrivals.waiting) and not self.fleet.members

    @property
    def hopeless(self) -> str | None:
        """Why no engine will come; None while one may."""
        return None if self._coming or self._arrivals.waiting else self.failure

    def members(self) -> list[EngineMember]:
        """Engines of the next publication, the waiting ones included."""
        return [*self.fleet.ordered(), *self._arrivals.waiting]

    def expect(self, degrees: Collection[int], within_s: float) -> None:
        """Engines of these degrees serve or will; while none does, up to this time from now, turns and publications wait."""
        self.fleet.expected_until_s = time.monotonic() + within_s
        self.fleet.degrees = self._router.use_degrees({*degrees, *(member.tp for member in self.members())})

    async def begin_publication(self, token: int, wait_s: float) -> bool:
        """Waits for an engine that is expected; False when none has come within `wait_s`. Else no engine leaves until the end."""
        end_s = time.monotonic() + wait_s
        while not self.members() and self.fleet.expects_engines:
            if time.monotonic() > end_s:
                return False
            await asyncio.sleep(_LOOK_S)
        self._publishing.add(token)
        return True

    def end_publication(self, token: int) -> None:
        """Idempotent, also for one that never began."""
        self._publishing.discard(token)

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
                if result is not None and self._arrivals.took(member):
                    self.fleet.add(member)
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
        member = await self._withdraw(engine_id, self._config.publishing_s)
        if member is None:
            return Handover(requests=0, seconds=time.monotonic() - started_s)
        requests = member.running
        try:
            await _emptied(member, deadline_s)
        finally:
            self.fleet.leaving.pop(engine_id, None)
        now_s = time.time()
        self._record("handed over", engine_id, now_s - (time.monotonic() - started_s), now_s)
        return Handover(requests=requests, seconds=time.monotonic() - started_s)

    async def _withdraw(self, engine_id: EngineId, deadline_s: float) -> EngineMember | None:
        end_s = time.monotonic() + deadline_s
        self._retired.add(engine_id)
        while True:
            async with self._publication:
                if not self._publishing:
                    self._arrivals.withdraw(engine_id)
                    return self.fleet.withdraw(engine_id)
            if time.monotonic() > end_s:
                raise DeadlineError(f"{engine_id} waited {deadline_s:.0f} s for the publication in work, and serves on")
            await asyncio.sleep(_LOOK_S)

    async def admit(self, engine: StartedEngine, canary: tuple[int, ...]) -> None:
        """Load the newest weights, compare the canary, and let it serve; by broadcast with the next publication. Idempotent.

        Raises:
            EngineLostError: it died or did not take the weights.
            NumericsError: it does not score the canary as the others do.
            DeadlineError: there was no publication.
        """
        member = member_of(engine)
        async with self._publication:
            self._retired.discard(engine.engine_id)
            if engine.engine_id in self.fleet.members:
                return
            if self._config.weights_by_file or self._last_order is None:
                if self._last_order is not None:
                    await load_weights(member, self._last_order, self._config.publication)
                await self._compare(member, canary)
                self.fleet.add(member)
                return
            self._arrivals.add(member)
        await self._arrivals.joined(engine.engine_id)

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

    def _replace(self, member: EngineMember, reason: str) -> None:
        logger.warning("%s; it is replaced", reason)
        self._record(f"lost: {reason}", member.engine_id, time.time(), time.time())
        self._coming += 1
        self._spawn(self._bring_replacement(member))

    async def _bring_replacement(self, lost: EngineMember) -> None:
        """Waits for the controller to start an engine in the same place; none comes where the plan has none any more."""
        what = f"the cluster controller to replace {lost.engine_id}"
        asked = self._controller.replace_engine.remote(lost.engine_id)
        try:
            started: StartedEngine | None = await reply("the fleet", what, asked, self._config.replacement_s + GRACE_S)
            if started is not None:
                await self._take(member_of(started))
        except (RayError, LibraError) as error:
            logger.exception("no replacement for %s", lost.engine_id)
            self.failure = f"{lost.engine_id} could not be replaced: {first_line(error)}"
        finally:
            self._coming -= 1

    async def _take(self, member: EngineMember) -> None:
        """A replacement, unless it comes too late."""
        async with self._publication:
            if member.engine_id in self._retired:
                return
            if not self._config.weights_by_file and self._last_order is not None:
                self._arrivals.add(member)
            elif self._last_order is None or await self._loads.load(member, self._last_order) is not None:
                self.fleet.add(member)
            else:
                self.failure = f"{member.engine_id}, a replacement, took no weights"

    def _drop(self, member: EngineMember, error: EngineLostError) -> None:
        if member.engine_id in self.fleet.members:
            self.fleet.lose(member.engine_id, str(error))
        elif member not in self._arrivals.waiting:  # lost or withdrawn before, or never in
            logger.warning("%s", error)
        elif not self._arrivals.failed(member, error):  # a replacement that nobody waits for
            self._arrivals.withdraw(member.engine_id)
            self._replace(member, str(error))


def member_of(engine: StartedEngine) -> EngineMember:
    return EngineMember(engine_id=engine.engine_id, tp=engine.tp, kv_tokens=engine.kv_tokens, handle=engine.handle)


async def _emptied(member: EngineMember, deadline_s: float) -> None:
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
        await asyncio.sleep(_LOOK_S)
