"""What the target of a move does before it can go on: load the context's KV from the engine before, or compute it again.

Where possible that overlaps a tool call: the engine that will probably serve the next turn does it meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ray.exceptions import RayError

from libra_core.config.rollout import RolloutConfig
from libra_core.errors import EngineLostError, LibraError
from libra_core.ports.routing import FinishedTrajectory, TurnContext
from libra_core.runtime.base.rpc import first_line, reply
from libra_core.runtime.rollout.fleet import EngineMember, Fleet
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.trajectory import GeneratedTurn, GenerationRequest

logger = logging.getLogger(__name__)

Generate = Callable[[EngineMember, GenerationRequest], Awaitable[GeneratedTurn]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldContext:
    """Where the KV of a trajectory's context lies."""

    engine_id: EngineId
    tokens: int
    """From the start of the context, whole blocks."""
    version: PolicyVersion
    """Of the weights that computed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWork:
    """One context that a target took over, for a move that was made or foreseen."""

    tp: int
    """Of the target."""
    context_tokens: int
    loaded_tokens: int
    """Of these, from the engine before."""
    computed_tokens: int
    """Of these, computed by the target; what is neither it held already."""
    seconds: float
    """From asking the engine before, if it is asked, to the target's first token."""


class MoveWatch(Protocol):
    """Who counts what moves cost and where trajectories end."""

    def note_first_token(self, seconds: float) -> None: ...

    def note_work(self, work: MoveWork) -> None: ...

    def note_ahead(self, seconds: float) -> None: ...

    def note_end(self, finished: FinishedTrajectory, tp: int, context_tokens: int) -> None: ...


Offer = Callable[[HeldContext, GenerationRequest], Awaitable[Mapping[str, Any] | None]]
"""Asks the engine before to hand over what it holds of a request's tokens; None when it does not, for whatever reason."""


class MoveTools(Protocol):
    """What a move needs from its surroundings."""

    @property
    def generate(self) -> Generate: ...

    @property
    def offer(self) -> Offer: ...

    @property
    def watch(self) -> MoveWatch: ...


async def generate_moved(
    member: EngineMember, request: GenerationRequest, held: HeldContext | None, tools: MoveTools
) -> GeneratedTurn:
    """A request to the target of a move. Waits for the engine before (bounded by `offer`), then for the target."""
    started_s = time.monotonic()
    # The offer first: the target begins to compute the context as soon as it has the request, and a ticket that came beside it
    # would find nothing left to load. An offer that is refused costs the prefill, never the turn.
    ticket = None if held is None else await tools.offer(held, request)
    asked_s = time.monotonic() - started_s
    turn = await tools.generate(member, replace(request, kv_ticket=ticket))
    loaded = (turn.cached_tokens if turn.loaded_tokens is None else turn.loaded_tokens) if ticket is not None else 0
    work = MoveWork(
        tp=member.tp,
        context_tokens=len(request.token_ids),
        loaded_tokens=loaded,
        computed_tokens=len(request.token_ids) - turn.cached_tokens,
        seconds=asked_s + turn.first_token_s,
    )
    tools.watch.note_work(work)
    return turn


class PrefillAhead:
    """One request for a single token, whose only use is the prefix cache that it leaves behind.

    Consumes: one engine request. Waits for: its answer, within the turn deadline. Whoever starts it either takes or drops it.
    """

    def __init__(self, member: EngineMember, request: GenerationRequest, held: HeldContext | None, tools: MoveTools) -> None:
        self.member = member
        # Beside the tool and not awaited before it ends: a prefill that the trajectory waited for would save nothing.
        work = self._compute(request, held, tools)
        self._task = asyncio.get_running_loop().create_task(work)  # failure: `_note_failure`, and whoever takes it
        self._task.add_done_callback(_note_failure)

    async def take(self) -> GeneratedTurn | None:
        """The trajectory does move there; None when the engine was lost meanwhile."""
        return await self._task

    def drop(self) -> None:
        """It goes elsewhere, or has ended."""
        self._task.cancel()  # which aborts the request: its KV would stand in the way of sequences that somebody reads

    async def _compute(self, request: GenerationRequest, held: HeldContext | None, tools: MoveTools) -> GeneratedTurn | None:
        started_s = time.monotonic()
        try:
            turn = await generate_moved(self.member, request, held, tools)
        except EngineLostError:
            return None
        tools.watch.note_ahead(time.monotonic() - started_s)
        return turn


def _note_failure(task: "asyncio.Task[GeneratedTurn | None]") -> None:
    """Whoever takes it gets the failure; of one that is dropped nobody else would tell."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.warning("a prefill ahead failed: %s: %s", type(error).__name__, first_line(error))


@dataclass(slots=True, kw_only=True)
class PrefillCount:
    """How much of a trajectory's context the engines computed, and how much of that again."""

    block_size: int
    context_tokens: int = field(default=0, init=False)
    """Of all turns together."""
    cached_tokens: int = field(default=0, init=False)
    reprefilled_tokens: int = field(default=0, init=False)
    _computed: int = field(default=0, init=False)
    """Length of the context whose KV some engine has computed."""

    @property
    def whole_blocks(self) -> int:
        """Tokens of it; a block that is only partly filled is never cached."""
        return self._computed - self._computed % self.block_size

    def add_ahead(self, turn: GeneratedTurn) -> None:
        self.reprefilled_tokens += max(0, self.whole_blocks - turn.cached_tokens)

    def add(self, turn: GeneratedTurn, context_tokens: int) -> None:
        """Up to one block of each turn is computed again for free. The last sampled token has no KV yet: no engine step has
        read it."""
        self.context_tokens += context_tokens
        self.cached_tokens += turn.cached_tokens
        self.add_ahead(turn)
        self._computed = context_tokens + max(0, len(turn.token_ids) - 1)


def stay(_turn: TurnContext) -> None:
    """Foresees no move."""


async def no_offer(_held: HeldContext, _request: GenerationRequest) -> None:
    """No connector: the target computes the context again."""


class KvOffers:
    """Waits for the source at most `deadline_s`; a source that fails is judged by its own turns, not here."""

    def __init__(self, fleet: Fleet, deadline_s: float) -> None:
        self._fleet = fleet
        self._deadline_s = deadline_s

    async def __call__(self, held: HeldContext, request: GenerationRequest) -> Mapping[str, Any] | None:
        member = self._fleet.source(held.engine_id)
        if member is None:
            return None
        member.running += 1  # an engine that leaves stays until it has answered
        tokens = request.token_ids[: held.tokens + 1]
        asked = member.handle.offer_kv.remote(request.request_id, tokens, held.version)
        try:
            return await reply(request.request_id, f"{held.engine_id} to hand its context over", asked, self._deadline_s)
        except (LibraError, RayError) as error:
            logger.info("%s handed nothing over for %s: %s", held.engine_id, request.request_id, first_line(error))
        finally:
            member.running -= 1
        return None


def offers_of(config: RolloutConfig, fleet: Fleet) -> Offer:
    """As configured; without a connector nobody is asked."""
    transfer = config.kv_transfer
    return no_offer if transfer.connector is None else KvOffers(fleet, transfer.offer_deadline_s)


_HALF_LIFE_MOVES = 64.0
_ENOUGH = 8.0
"""Moves, after forgetting, from which on the figure is used."""


@dataclass(slots=True)
class _Tally:
    moves: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class MoveMeter:
    """By degree of the target: a quotient of sums, so that long contexts weigh as much as they take."""

    _tallies: dict[int, _Tally] = field(default_factory=dict[int, _Tally])

    def add(self, tp: int, context_tokens: int, seconds: float) -> None:
        tally = self._tallies.setdefault(tp, _Tally())
        kept = 0.5 ** (1.0 / _HALF_LIFE_MOVES)
        tally.moves = kept * tally.moves + 1.0
        tally.tokens = kept * tally.tokens + context_tokens
        tally.seconds = kept * tally.seconds + seconds

    def s_per_token(self) -> dict[int, float]:
        """Of the degrees that have seen enough moves."""
        return {tp: t.seconds / t.tokens for tp, t in self._tallies.items() if t.moves >= _ENOUGH and t.tokens > 0}
