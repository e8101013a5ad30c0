"""A group that lost samples is retried, trained in part or dropped, as configured; what infrastructure lost has no reward."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from libra_core.config.rollout import RolloutConfig
from libra_core.ports.environment import Episode, TurnStops
from libra_core.runtime.rollout.agent_loop import AgentTools
from libra_core.runtime.rollout.fleet import EngineMember
from libra_core.runtime.rollout.group_runner import GroupRunner, GroupVerdict, judge_group
from libra_core.runtime.rollout.kv_moves import stay
from libra_core.runtime.rollout.scorer import score_one
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import EngineId, PolicyVersion, PromptId
from libra_core.types.trajectory import (
    FailureKind,
    FinishReason,
    GeneratedTurn,
    GenerationRequest,
    Prompt,
    ToolCall,
    ToolReturn,
    ToolStatus,
    Trajectory,
)
from libra_core.workloads.episodes import InstantEpisode
from support.routing import CountedMoves

PROMPT = Prompt(prompt_id=PromptId("p"), token_ids=(1, 2, 3), text="?", answers=("a",))


class OneTurn:
    """Every trajectory is one turn; the scorer raises or hangs at the given calls, counted from 0, and else earns 1."""

    def __init__(self, *, raises: Sequence[int] = (), hangs: Sequence[int] = ()) -> None:
        self._raises, self._hangs = set(raises), set(hangs)
        self.scored: list[str] = []

    def stops(self) -> TurnStops:
        return TurnStops(token_ids=(9,))

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        return None

    async def reset(self, prompt: Prompt) -> Episode:
        return InstantEpisode(lambda call: self.answer_failure(call, ToolStatus.OK))

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        return ToolReturn(tool=call.tool, status=status, token_ids=(), duration_s=0.0)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        number = len(self.scored)
        self.scored.append(trajectory.trajectory_id)
        if number in self._raises:
            raise OSError("the sandbox is gone")
        if number in self._hangs:
            await asyncio.Event().wait()
        return 1.0

    def render(self, token_ids: Sequence[int]) -> str:
        return str(list(token_ids))


def play(policy: str, world: OneTurn) -> tuple[TrajectoryGroup, GroupVerdict, list[int]]:
    """A group of three samples; also the groups that were said to be retried."""
    retried: list[int] = []

    async def bind(_: object) -> EngineMember:
        return EngineMember(engine_id=EngineId("engine-0"), tp=1, kv_tokens=1000, handle=None)

    async def generate(_: EngineMember, request: GenerationRequest) -> GeneratedTurn:
        return GeneratedTurn(
            token_ids=(9,),
            logprobs=(-1.0,),
            finish_reason=FinishReason.STOP,
            versions=(),
            cached_tokens=0,
            first_token_s=0.0,
            duration_s=0.0,
        )

    async def score(group: TrajectoryGroup) -> TrajectoryGroup:
        scored = [await score_one(world, group.prompt, t, RolloutConfig(score_deadline_s=0.05)) for t in group.trajectories]
        return replace(group, trajectories=tuple(scored))

    tools = AgentTools(
        environment=world,
        bind=bind,
        generate=generate,
        release=lambda *_: None,
        record=lambda *_: None,
        foresee=stay,
        watch=CountedMoves(),
    )
    config = RolloutConfig().model_copy(update={"group_size": 3, "on_failed_group": policy, "max_group_retries": 1})
    runner = GroupRunner(config=config, tools=tools, score=score, on_retry=retried.append)
    group, verdict = asyncio.run(runner.run(7, PROMPT, PolicyVersion(0)))
    return group, verdict, retried


@pytest.mark.parametrize(
    ("policy", "usable", "retries", "verdict"),
    [
        ("retry", 8, 0, GroupVerdict.COMPLETE),
        ("retry", 7, 0, GroupVerdict.RETRY),
        ("retry", 7, 2, GroupVerdict.PARTIAL),
        ("retry", 1, 2, GroupVerdict.DROP),
        ("partial", 7, 0, GroupVerdict.PARTIAL),
        ("partial", 1, 0, GroupVerdict.DROP),
        ("drop", 7, 0, GroupVerdict.DROP),
        ("drop", 8, 0, GroupVerdict.COMPLETE),
    ],
)
def test_verdict(policy: str, usable: int, retries: int, verdict: GroupVerdict) -> None:
    config = RolloutConfig().model_copy(update={"on_failed_group": policy, "max_group_retries": 2})
    assert judge_group(usable, 8, retries, config) is verdict


def test_a_scorer_that_fails_once_is_asked_again() -> None:
    group, verdict, retried = play("retry", OneTurn(raises=[0], hangs=[2]))
    assert [t.reward for t in group.trajectories] == [1.0, 1.0, 1.0]
    assert (verdict, retried) == (GroupVerdict.COMPLETE, [])


def test_a_sample_without_a_score_is_run_again_and_the_others_are_kept() -> None:
    world = OneTurn(raises=[1, 2])
    group, verdict, retried = play("retry", world)
    assert [t.reward for t in group.trajectories] == [1.0, 1.0, 1.0]
    assert [t.trajectory_id for t in group.trajectories] == ["g000007.0.0", "g000007.1.1", "g000007.2.0"]
    assert (verdict, retried, group.retries) == (GroupVerdict.COMPLETE, [7], 1)
    assert world.scored == ["g000007.0.0", "g000007.1.0", "g000007.1.0", "g000007.2.0", "g000007.1.1"]


@pytest.mark.parametrize(
    ("policy", "verdict"), [("retry", GroupVerdict.PARTIAL), ("partial", GroupVerdict.PARTIAL), ("drop", GroupVerdict.DROP)]
)
def test_a_hanging_scorer_leaves_a_failed_sample_without_a_reward(policy: str, verdict: GroupVerdict) -> None:
    world = OneTurn(hangs=[1, 2, 4, 5])
    group, found, _ = play(policy, world)
    assert found is verdict
    lost = group.trajectories[1]
    assert lost.failure is not None
    assert (lost.failure.kind, lost.reward) == (FailureKind.SCORER, None)
    assert "score_deadline_s" in lost.failure.message
    assert len(group.usable) == 2
