"""One multi-turn trajectory: generate, call the tool, append, repeat. Token-exact and engine-loss-proof."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from libra_core import borders
from libra_core.config.rollout import RolloutConfig
from libra_core.errors import DeadlineError, EngineLostError, PromptError
from libra_core.ports.environment import Environment, Episode
from libra_core.ports.routing import FinishedTrajectory, TurnContext
from libra_core.runtime.rollout.fleet import EngineMember
from libra_core.runtime.rollout.kv_moves import (
    HeldContext,
    MoveWatch,
    Offer,
    PrefillAhead,
    PrefillCount,
    generate_moved,
    no_offer,
)
from libra_core.types.ids import EngineId, GroupId, TrajectoryId
from libra_core.types.trajectory import (
    Failure,
    FailureKind,
    FinishReason,
    GeneratedTurn,
    GenerationRequest,
    Prompt,
    ToolCall,
    ToolOutcome,
    ToolReturn,
    ToolStatus,
    Trajectory,
    VersionSegment,
)
from libra_core.workloads.work_clock import WorkClock

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_MAX_ENGINE_LOSSES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTools:
    """What an agent loop needs from its surroundings."""

    environment: Environment
    bind: Callable[[TurnContext], Awaitable[EngineMember]]
    foresee: Callable[[TurnContext], EngineMember | None]
    """Where the next turn will move to, as far as can be said while a tool runs."""
    generate: Callable[[EngineMember, GenerationRequest], Awaitable[GeneratedTurn]]
    release: Callable[[TrajectoryId, str, int, FinishedTrajectory | None], None]
    """Called once when the trajectory ends: id, prompt kind, final context length, and what there is to learn from it."""
    watch: MoveWatch
    record: Callable[[str, str, float, float], None]
    """Timeline: name, lane, start, end in unix seconds."""
    offer: Offer = no_offer
    vocabulary: int | None = None
    """Token ids of tools are below it; None where it is not known."""
    cut_mark: tuple[int, ...] = ()
    """Stands where a tool's answer was too long."""
    waiting: Callable[[str, str], AbstractContextManager[None]] = lambda _who, _whom: nullcontext()
    """Around a wait: who waits for whom."""


@dataclass(slots=True, kw_only=True)
class AgentLoop:
    """State of one running trajectory. One coroutine owns it.

    Consumes: turns from engines, tool returns. Waits for: an engine (bounded by the fleet), a turn (turn deadline), a place for
    a tool (queue deadline), a tool (tool deadline). Unblocked by: the engine's answer, an engine loss (the turn is sent again
    elsewhere), an abort for a publication (the turn goes on from its partial tokens).
    """

    trajectory_id: TrajectoryId
    group_id: GroupId
    order: int
    """Position of the group in the run."""
    sample_index: int
    prompt: Prompt
    config: RolloutConfig
    tools: AgentTools
    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSegment] = field(default_factory=list)
    tool_returns: list[ToolReturn] = field(default_factory=list)
    outcomes: list[ToolOutcome] = field(default_factory=list)
    """The same without their tokens, as the router sees them."""
    engines: list[EngineId] = field(default_factory=list)
    turn_tokens: list[int] = field(default_factory=list)
    """Generated tokens per turn."""
    submission: str = ""
    generated: int = 0
    losses: int = 0
    prefill: PrefillCount = field(init=False)
    current: EngineId | None = None
    degree: int = 1
    """Of the engine that served last."""
    ahead: PrefillAhead | None = None
    """Of the move that the running tool call may end in."""
    _requests: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.prefill = PrefillCount(block_size=self.config.block_size)

    @property
    def turns(self) -> int:
        return len(self.turn_tokens)

    async def run(self) -> Trajectory:
        started_s = time.time()
        self._append(self.prompt.token_ids, sampled=False)
        failure: Failure | None = None
        finished: FinishedTrajectory | None = None
        finish = FinishReason.LENGTH
        try:
            finish = await self._play()
            finished = self._finished()
            self.tools.watch.note_end(finished, self.degree, len(self.token_ids))
        except EngineLostError as error:
            failure = Failure(kind=FailureKind.ENGINE, message=str(error))
        except PromptError as error:
            failure = Failure(kind=FailureKind.PROMPT, message=str(error))
        except Exception as error:  # a tool runner may raise anything; the trajectory is marked, never scored 0
            logger.exception("tool runner failed for %s", self.trajectory_id)
            failure = Failure(kind=FailureKind.TOOL_RUNNER, message=f"{type(error).__name__}: {error}")
        finally:
            if self.ahead is not None:
                self.ahead.drop()
            # However it ended: context that stays promised to it would make its engine look full for the rest of the run.
            self.tools.release(self.trajectory_id, self.prompt.kind, len(self.token_ids), finished)
        return self._trajectory(finish, failure, started_s)

    async def _play(self) -> FinishReason:
        config, who = self.config, self.trajectory_id
        borders.require_room(self.prompt, who, config.max_context_tokens)
        with self.tools.waiting(who, "its tools to open"):
            made = await within(config.batch_deadline_s, self.tools.environment.reset(self.prompt), f"{who}, for its tools,")
        episode: Episode = borders.episode_of(made, who)
        try:
            finish = await self._turns(episode)
            with self.tools.waiting(who, "its submission"):
                self.submission = await submission_of(episode, who, config)
        finally:
            await end_tools(episode, config.tool_deadline_s, who)
        return finish

    async def _turns(self, episode: Episode) -> FinishReason:
        while True:
            turn_tokens = await self._one_turn()
            if turn_tokens is None:
                return FinishReason.LENGTH
            call = borders.call_of(self.tools.environment.parse_call(turn_tokens), self.trajectory_id)
            if call is None:
                return FinishReason.STOP
            if self.turns >= self.config.max_turns:
                return FinishReason.LENGTH
            answer = await self._call_tool(episode, call)
            self.tool_returns.append(answer)
            self.outcomes.append(answer.outcome)
            self._append(answer.token_ids, sampled=False)

    async def _one_turn(self) -> tuple[int, ...] | None:
        """Sample until a stop token, over engine losses and aborts; None when the length limit came first."""
        turn_start = len(self.token_ids)
        self.turn_tokens.append(0)
        while True:
            if (room := self._room()) <= 0:
                return None
            turn = await self._sample(room)
            if turn is None:
                continue
            self._append_turn(turn)
            written = tuple(self.token_ids[turn_start:])
            if turn.finish_reason is FinishReason.STOP and ends_turn(self.tools.environment, written):
                return written
            if turn.finish_reason is FinishReason.LENGTH:
                return None

    async def _sample(self, room: int) -> GeneratedTurn | None:
        """One request; None when its engine was lost and the turn must be sent again."""
        with self.tools.waiting(self.trajectory_id, "a place on an engine"):
            member = await self.tools.bind(self._context())
        moves = self.current is not None and self.current != member.engine_id
        start_s = time.time()
        try:
            with self.tools.waiting(self.trajectory_id, f"turn {self.turns} of {member.engine_id}"):
                turn = await self._turn_on(member, room, moves=moves)
        except EngineLostError:
            self.losses += 1
            self.current = None  # its cache is gone with it: the next engine is a first one, no move
            if self.losses > _MAX_ENGINE_LOSSES:
                raise
            return None
        self.tools.record(f"turn {self.turns}", member.engine_id, start_s, time.time())
        self.prefill.add(turn, len(self.token_ids))
        if moves:
            self.tools.watch.note_first_token(turn.first_token_s)
        self.current, self.degree = member.engine_id, member.tp
        if not self.engines or self.engines[-1] != member.engine_id:
            self.engines.append(member.engine_id)
        return turn

    async def _turn_on(self, member: EngineMember, room: int, *, moves: bool) -> GeneratedTurn:
        prepared = await self._use_ahead(member)
        if moves and not prepared:
            return await generate_moved(member, self._request(room), self._held(), self.tools)
        return await self.tools.generate(member, self._request(room))

    def _request(self, max_new_tokens: int) -> GenerationRequest:
        stops = self.tools.environment.stops()
        return GenerationRequest(
            request_id=f"{self.trajectory_id}/{next(self._requests)}",
            token_ids=tuple(self.token_ids),
            max_new_tokens=max_new_tokens,
            temperature=self.config.temperature,
            stop_token_ids=stops.token_ids + stops.candidates,
        )

    def _start_ahead(self) -> PrefillAhead | None:
        """Begin the move that the tool's return will probably bring, when there is room to go on at all."""
        member = self.tools.foresee(self._context()) if self._room() > 1 else None
        return None if member is None else PrefillAhead(member, self._request(1), self._held(), self.tools)

    async def _use_ahead(self, member: EngineMember) -> bool:
        """Wait for what the target does already, or let go of it."""
        # Taken off before the wait: whatever ends that ends the request too, and leaves nothing to be dropped a second time.
        ahead, self.ahead = self.ahead, None
        if ahead is None or ahead.member is not member:
            if ahead is not None:
                ahead.drop()
            return False
        turn = await ahead.take()
        if turn is not None:
            self.prefill.add_ahead(turn)
        return turn is not None

    def _held(self) -> HeldContext | None:
        """What the engine of the last turn holds, under the weights that sampled its last token."""
        tokens = self.prefill.whole_blocks
        if self.current is None or not tokens or not self.versions:
            return None
        return HeldContext(engine_id=self.current, tokens=tokens, version=self.versions[-1].version)

    async def _call_tool(self, episode: Episode, call: ToolCall) -> ToolReturn:
        start_s = time.time()
        self.ahead = self._start_ahead()
        clock = clock_of(self.trajectory_id, self.config.tool_deadline_s, self.config)
        checked = partial(borders.return_of, who=self.trajectory_id, bounds=self._return_bounds())

        async def step() -> ToolReturn:
            return checked(await episode.step(call))

        def late() -> ToolReturn:
            return checked(self.tools.environment.answer_failure(call, ToolStatus.TIMEOUT))

        try:
            with self.tools.waiting(self.trajectory_id, f"the tool {call.tool}"):
                return await clock.answered(step(), late)
        finally:
            self.tools.record(call.tool, "tools", start_s, time.time())

    def _return_bounds(self) -> borders.ReturnBounds:
        """A tool's answer never grows a trajectory beyond its context."""
        left = max(0, self.config.max_context_tokens - len(self.token_ids))
        most = self.config.max_tool_tokens
        tools = self.tools
        return borders.ReturnBounds(
            max_tokens=left if most is None else min(most, left), vocabulary=tools.vocabulary, mark=tools.cut_mark
        )

    def _room(self) -> int:
        return min(self.config.max_new_tokens - self.generated, self.config.max_context_tokens - len(self.token_ids))

    def _context(self) -> TurnContext:
        return TurnContext(
            trajectory_id=self.trajectory_id,
            kind=self.prompt.kind,
            order=self.order,
            current=self.current,
            context_tokens=len(self.token_ids),
            tool_returns=self.outcomes,
            prompt_id=self.prompt.prompt_id,
            prompt_text=self.prompt.text,
            generated_tokens=self.generated,
            prepared=None if self.ahead is None else self.ahead.member.engine_id,
        )

    def _finished(self) -> FinishedTrajectory:
        return FinishedTrajectory(
            trajectory_id=self.trajectory_id,
            prompt_id=self.prompt.prompt_id,
            turn_tokens=self.turn_tokens,
            tool_returns=self.outcomes,
            prompt_text=self.prompt.text,
        )

    def _append(self, token_ids: tuple[int, ...], *, sampled: bool) -> None:
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([int(sampled)] * len(token_ids))
        if not sampled:
            self.logprobs.extend([0.0] * len(token_ids))

    def _append_turn(self, turn: GeneratedTurn) -> None:
        if not all(map(math.isfinite, turn.logprobs)):
            raise EngineLostError(f"{self.current} gave a token of {self.trajectory_id} a log-probability that is not finite")
        offset = len(self.token_ids)
        self._append(turn.token_ids, sampled=True)
        self.logprobs.extend(turn.logprobs)
        self.generated += len(turn.token_ids)
        self.turn_tokens[-1] += len(turn.token_ids)
        self.versions.extend(
            VersionSegment(version=s.version, start=offset + s.start, end=offset + s.end)
            for s in turn.versions
            if s.end > s.start
        )

    def _trajectory(self, finish: FinishReason, failure: Failure | None, started_s: float) -> Trajectory:
        return Trajectory(
            trajectory_id=self.trajectory_id,
            group_id=self.group_id,
            prompt_id=self.prompt.prompt_id,
            sample_index=self.sample_index,
            token_ids=tuple(self.token_ids),
            loss_mask=tuple(self.loss_mask),
            logprobs=tuple(self.logprobs),
            prompt_tokens=len(self.prompt.token_ids),
            versions=tuple(self.versions),
            turns=self.turns,
            tool_returns=tuple(self.tool_returns),
            finish_reason=finish,
            engine_history=tuple(self.engines),
            context_tokens=self.prefill.context_tokens,
            cached_tokens=self.prefill.cached_tokens,
            reprefilled_tokens=self.prefill.reprefilled_tokens,
            started_s=started_s,
            finished_s=time.time(),
            submission=self.submission,
            failure=failure,
        )


async def within(deadline_s: float, work: Awaitable[Result], waits: str) -> Result:
    """Raises `DeadlineError` that says who waited for what."""
    deadline = asyncio.timeout(deadline_s)
    try:
        async with deadline:
            return await work
    except TimeoutError:
        if not deadline.expired():
            raise
        raise DeadlineError(f"{waits} waited {deadline_s:.0f} s") from None


def clock_of(who: TrajectoryId, work_s: float, config: RolloutConfig) -> WorkClock:
    return WorkClock(who, work_s=work_s, queue_s=config.queue_deadline_s)


async def submission_of(episode: Episode, who: TrajectoryId, config: RolloutConfig) -> str:
    clock = clock_of(who, config.score_deadline_s, config)
    try:
        return borders.submission_of(await clock.hold(episode.submission()), who)
    except TimeoutError:
        if not clock.late:
            raise
        raise DeadlineError(f"{who}, for its submission, waited {config.score_deadline_s:.0f} s") from None


async def end_tools(episode: Episode, deadline_s: float, who: TrajectoryId) -> None:
    """What was sampled stays good whatever becomes of the tools, and what went wrong before keeps its name."""
    try:
        await within(deadline_s, episode.close(), f"{who}, for its tools to end,")
    except Exception as error:  # a tool may raise anything
        logger.warning("the tools of %s did not end well: %s: %s", who, type(error).__name__, error)


def ends_turn(environment: Environment, written: tuple[int, ...]) -> bool:
    """Whether the tokens of a turn hold one of its stops whole; a candidate token alone does not end it."""
    stops = environment.stops()
    if not stops.texts or written[-1] in stops.token_ids:
        return True
    text = environment.render(written)
    return any(stop in text for stop in stops.texts)
