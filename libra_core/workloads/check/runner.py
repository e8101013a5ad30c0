"""Many episodes of one agent at once, and what came of them."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from libra_core import borders
from libra_core.ports.environment import Environment, Episode
from libra_core.types.ids import GroupId, PolicyVersion, TrajectoryId
from libra_core.types.trajectory import FinishReason, Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory, VersionSegment
from libra_core.workloads.check.agents import Agent
from libra_core.workloads.text_codec import TextCodec
from libra_core.workloads.work_clock import WorkClock

_LONGEST_TURN = 200_000
_WHO = "the episode"
_RETURNS = borders.ReturnBounds(max_tokens=1_000_000)
Progress = Callable[[int], None]
"""Told how many episodes have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Times in seconds; a lost episode is one that infrastructure failed."""

    episodes: int
    success: float
    """Share of all episodes with reward of at least 1."""
    mean_reward: float
    lost: int
    losses: tuple[str, ...]
    """The first few, in words."""
    turns: int
    tool_calls: dict[str, int]
    """By status."""
    tool_mean_s: float
    tool_p90_s: float
    queue_mean_s: float
    """Per tool call, for a place on the host; the tool's own times are without it."""
    score_mean_s: float
    most_at_once: int
    """Episodes open at the same time, at most."""
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    episodes: int
    at_once: int
    max_turns: int
    tool_deadline_s: float
    score_deadline_s: float
    queue_deadline_s: float
    threads: int
    """For what blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    reward: float
    returns: tuple[ToolReturn, ...]
    turns: int
    score_s: float
    loss: str = ""


class Checker:
    """Plays episodes; a broken tool or scorer loses an episode, never the check."""

    def __init__(self, environment: Environment, codec: TextCodec, plan: CheckPlan) -> None:
        self._environment = environment
        self._codec = codec
        self._plan = plan
        self._open = 0
        self._most_open = 0

    async def run(self, prompts: Iterator[Prompt], make_agent: Callable[[int], Agent], progress: Progress) -> CheckReport:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(self._plan.threads))
        started_s = time.monotonic()
        places = asyncio.Semaphore(self._plan.at_once)
        outcomes: list[_Outcome] = []

        async def one(number: int, prompt: Prompt) -> None:
            async with places:
                outcomes.append(await self._episode(prompt, make_agent(number)))
                progress(len(outcomes))

        await asyncio.gather(*(one(number, next(prompts)) for number in range(self._plan.episodes)))
        return self._report(outcomes, time.monotonic() - started_s)

    async def _episode(self, prompt: Prompt, agent: Agent) -> _Outcome:
        transcript = _Transcript(prompt)
        try:
            episode: Episode = borders.episode_of(await self._environment.reset(prompt), _WHO)
            self._open += 1
            self._most_open = max(self._most_open, self._open)
            try:
                await self._turns(prompt, agent, episode, transcript)
                submission = borders.submission_of(await episode.submission(), _WHO)
            finally:
                self._open -= 1
                await episode.close()
            started_s = time.monotonic()
            scoring = self._environment.score(prompt, transcript.trajectory(submission))
            reward = borders.reward_of(await self._clock(self._plan.score_deadline_s).hold(scoring), _WHO)
        except Exception as error:  # what the agent loop would mark as a failed trajectory
            loss = f"{type(error).__name__}: {str(error)[:200]}"
            return _Outcome(reward=0.0, returns=tuple(transcript.returns), turns=transcript.turns, score_s=0.0, loss=loss)
        score_s = time.monotonic() - started_s
        return _Outcome(reward=reward, returns=tuple(transcript.returns), turns=transcript.turns, score_s=score_s)

    async def _turns(self, prompt: Prompt, agent: Agent, episode: Episode, transcript: "_Transcript") -> None:
        answers: list[str] = []
        for _ in range(self._plan.max_turns):
            turn = self._codec.encode(agent.say(prompt, answers)[:_LONGEST_TURN])
            transcript.add(turn, spoken=True)
            transcript.turns += 1
            call = borders.call_of(self._environment.parse_call(turn), _WHO)
            if call is None:
                return
            returned = await self._step(episode, call)
            transcript.returns.append(returned)
            transcript.add(returned.token_ids, spoken=False)
            answers.append(self._codec.decode(returned.token_ids))

    async def _step(self, episode: Episode, call: ToolCall) -> ToolReturn:
        async def step() -> ToolReturn:
            return borders.return_of(await episode.step(call), _WHO, _RETURNS)

        late = partial(self._environment.answer_failure, call, ToolStatus.TIMEOUT)
        return await self._clock(self._plan.tool_deadline_s).answered(step(), late)

    def _clock(self, work_s: float) -> WorkClock:
        return WorkClock("the episode", work_s=work_s, queue_s=self._plan.queue_deadline_s)

    def _report(self, outcomes: list[_Outcome], wall_s: float) -> CheckReport:
        returns = [returned for outcome in outcomes for returned in outcome.returns]
        durations = [returned.duration_s for returned in returns]
        scored = [outcome.score_s for outcome in outcomes if not outcome.loss]
        return CheckReport(
            episodes=len(outcomes),
            success=sum(outcome.reward >= 1.0 for outcome in outcomes) / max(1, len(outcomes)),
            mean_reward=statistics.fmean(outcome.reward for outcome in outcomes) if outcomes else 0.0,
            lost=sum(bool(outcome.loss) for outcome in outcomes),
            losses=tuple(outcome.loss for outcome in outcomes if outcome.loss)[:5],
            turns=sum(outcome.turns for outcome in outcomes),
            tool_calls=dict(sorted(Counter(str(returned.status) for returned in returns).items())),
            tool_mean_s=statistics.fmean(durations) if durations else 0.0,
            tool_p90_s=statistics.quantiles(durations, n=10, method="inclusive")[-1] if len(durations) > 1 else 0.0,
            queue_mean_s=statistics.fmean(returned.waited_s for returned in returns) if returns else 0.0,
            score_mean_s=statistics.fmean(scored) if scored else 0.0,
            most_at_once=self._most_open,
            wall_s=wall_s,
        )


class _Transcript:
    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._token_ids = list(prompt.token_ids)
        self._loss_mask = [0] * len(prompt.token_ids)
        self.returns: list[ToolReturn] = []
        self.turns = 0

    def add(self, token_ids: tuple[int, ...], *, spoken: bool) -> None:
        self._token_ids += token_ids
        self._loss_mask += [int(spoken)] * len(token_ids)

    def trajectory(self, submission: str) -> Trajectory:
        start = len(self._prompt.token_ids)
        segment = VersionSegment(version=PolicyVersion(0), start=start, end=len(self._token_ids))
        return Trajectory(
            trajectory_id=TrajectoryId("check"),
            group_id=GroupId("check"),
            prompt_id=self._prompt.prompt_id,
            sample_index=0,
            token_ids=tuple(self._token_ids),
            loss_mask=tuple(self._loss_mask),
            logprobs=(0.0,) * len(self._token_ids),
            prompt_tokens=start,
            versions=(segment,),
            turns=self.turns,
            tool_returns=tuple(self.returns),
            finish_reason=FinishReason.STOP,
            engine_history=(),
            started_s=0.0,
            finished_s=0.0,
            submission=submission,
        )
