"""A trajectory moves between turns: the target computes its context while the tool runs, and nothing of it changes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from libra_core.config.rollout import RolloutConfig
from libra_core.errors import EngineLostError
from libra_core.ports.routing import FinishedTrajectory, TurnContext
from libra_core.runtime.rollout.agent_loop import AgentLoop, AgentTools
from libra_core.runtime.rollout.fleet import EngineMember
from libra_core.runtime.rollout.kv_moves import HeldContext
from libra_core.types.ids import EngineId, GroupId, PolicyVersion, TrajectoryId
from libra_core.types.trajectory import FinishReason, GeneratedTurn, GenerationRequest, Trajectory, VersionSegment
from support.routing import CountedMoves
from tests.unit.runtime.test_agent_loop import CALL, END, PROMPT, EchoEnvironment

SMALL = EngineMember(engine_id=EngineId("small"), tp=1, kv_tokens=1000, handle=None)
LARGE = EngineMember(engine_id=EngineId("large"), tp=2, kv_tokens=1000, handle=None)


class TwoEngines:
    """Answers as the real fleet would; a deterministic policy, so that every move must give the same tokens."""

    def __init__(self, *, foreseen: EngineMember | None, then: EngineMember, dies: str = "") -> None:
        self.foreseen, self.then, self.dies = foreseen, then, dies
        self.asked: list[tuple[str, GenerationRequest]] = []
        self.turns: list[TurnContext] = []
        self.ahead_done = asyncio.Event()
        self.learnt: list[FinishedTrajectory | None] = []
        self.offers: list[HeldContext] = []
        self.ticket: dict[str, int] | None = None

    async def offer(self, held: HeldContext, request: GenerationRequest) -> dict[str, int] | None:
        self.offers.append(held)
        assert held.tokens <= len(request.token_ids) - 1
        return self.ticket

    async def bind(self, turn: TurnContext) -> EngineMember:
        self.turns.append(turn)
        return self.then if turn.tool_returns and not self.dies.startswith("bind") else SMALL

    def foresee(self, turn: TurnContext) -> EngineMember | None:
        return self.foreseen

    async def generate(self, member: EngineMember, request: GenerationRequest) -> GeneratedTurn:
        self.asked.append((member.engine_id, request))
        ahead = request.max_new_tokens == 1
        if ahead:
            self.ahead_done.set()
        if self.dies and member is LARGE and (ahead or self.dies == "turn"):
            if self.dies == "turn":
                self.then = SMALL
            raise EngineLostError("large died")
        tokens = (20 + len(request.token_ids), CALL if len(request.token_ids) < 7 else END)
        return GeneratedTurn(
            token_ids=tokens[:1] if ahead else tokens,
            logprobs=(-0.5,) if ahead else (-0.5, -0.25),
            finish_reason=FinishReason.LENGTH if ahead else FinishReason.STOP,
            versions=(VersionSegment(version=PolicyVersion(3), start=0, end=1 if ahead else 2),),
            cached_tokens=4 if request.kv_ticket else 0,
            loaded_tokens=4 if request.kv_ticket else None,
            first_token_s=0.125,
            duration_s=0.5,
        )

    def release(self, _id: TrajectoryId, _kind: str, _tokens: int, finished: FinishedTrajectory | None) -> None:
        self.learnt.append(finished)


def run(fleet: TwoEngines, tool: Callable[[], Awaitable[None]] | None = None) -> tuple[Trajectory, CountedMoves]:
    watch = CountedMoves()

    async def main() -> Trajectory:
        tools = AgentTools(
            environment=EchoEnvironment(tool),
            bind=fleet.bind,
            foresee=fleet.foresee,
            generate=fleet.generate,
            release=fleet.release,
            watch=watch,
            record=lambda *_: None,
            offer=fleet.offer,
        )
        loop = AgentLoop(
            trajectory_id=TrajectoryId("t"),
            group_id=GroupId("g"),
            order=0,
            sample_index=0,
            prompt=PROMPT,
            config=RolloutConfig().model_copy(update={"max_new_tokens": 20, "max_context_tokens": 40, "block_size": 2}),
            tools=tools,
        )
        return await loop.run()

    return asyncio.run(main()), watch


def facts(trajectory: Trajectory) -> tuple[object, ...]:
    return trajectory.token_ids, trajectory.loss_mask, trajectory.logprobs, trajectory.versions, trajectory.finish_reason


STAYED, _ = run(TwoEngines(foreseen=None, then=SMALL))


def test_the_target_computes_the_context_while_the_tool_runs() -> None:
    fleet = TwoEngines(foreseen=LARGE, then=LARGE)
    trajectory, watch = run(fleet, tool=lambda: assert_set(fleet.ahead_done))
    assert [name for name, _ in fleet.asked] == ["small", "large", "large"]
    assert fleet.asked[1][1].token_ids == fleet.asked[2][1].token_ids[:5], "the context without the tool's answer"
    assert fleet.turns[-1].prepared == "large"
    assert (watch.aheads, watch.first_tokens) == (1, [0.125])
    assert trajectory.engine_history == ("small", "large")
    assert facts(trajectory) == facts(STAYED)


async def assert_set(event: asyncio.Event) -> None:
    """The tool ends only once the target was asked."""
    await asyncio.wait_for(event.wait(), 5.0)


def test_a_move_that_was_not_foreseen_is_the_same_trajectory() -> None:
    trajectory, watch = run(TwoEngines(foreseen=None, then=LARGE))
    assert trajectory.engine_history == ("small", "large")
    assert (watch.aheads, len(watch.first_tokens)) == (0, 1)
    assert facts(trajectory) == facts(STAYED)


@pytest.mark.parametrize("foreseen", [LARGE, None])
def test_a_target_loads_what_the_engine_before_hands_over(foreseen: EngineMember | None) -> None:
    fleet = TwoEngines(foreseen=foreseen, then=LARGE)
    fleet.ticket = {"here": 1}
    trajectory, watch = run(fleet)
    assert fleet.offers == [HeldContext(engine_id=EngineId("small"), tokens=4, version=PolicyVersion(3))]
    with_ticket = [(name, request.max_new_tokens == 1) for name, request in fleet.asked if request.kv_ticket]
    assert with_ticket == [("large", foreseen is not None)], "once, ahead of the tool's answer where that was foreseen"
    (work,) = watch.works
    assert (work.tp, work.loaded_tokens) == (2, 4)
    assert work.computed_tokens == work.context_tokens - 4
    assert work.seconds >= 0.125
    assert facts(trajectory) == facts(STAYED)


def test_a_target_computes_what_is_not_handed_over() -> None:
    trajectory, watch = run(TwoEngines(foreseen=None, then=LARGE))
    (work,) = watch.works
    assert (work.loaded_tokens, work.computed_tokens) == (0, work.context_tokens)
    assert facts(trajectory) == facts(STAYED)


def test_a_trajectory_that_stays_asks_for_nothing() -> None:
    fleet = TwoEngines(foreseen=None, then=SMALL)
    _, watch = run(fleet)
    assert fleet.offers == []
    assert watch.works == []


def test_a_foreseen_move_that_does_not_come_is_dropped() -> None:
    fleet = TwoEngines(foreseen=LARGE, then=SMALL)
    trajectory, watch = run(fleet)
    assert trajectory.engine_history == ("small",)
    assert watch.first_tokens == []
    assert facts(trajectory) == facts(STAYED)


def test_a_prefill_ahead_that_fails_for_an_unknown_reason_is_told_although_nobody_takes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(TwoEngines):
        async def generate(self, member: EngineMember, request: GenerationRequest) -> GeneratedTurn:
            turn = await super().generate(member, request)
            if request.max_new_tokens == 1:
                raise LookupError("no such block")
            return turn

    fleet = Broken(foreseen=LARGE, then=SMALL)
    trajectory, _ = run(fleet, lambda: asyncio.sleep(0.01))
    assert facts(trajectory) == facts(STAYED)
    assert "a prefill ahead failed: LookupError: no such block" in caplog.messages


@pytest.mark.parametrize("dies", ["ahead", "turn"])
def test_an_engine_that_dies_during_a_move_loses_nothing(dies: str) -> None:
    fleet = TwoEngines(foreseen=LARGE, then=LARGE if dies == "turn" else SMALL, dies=dies)
    trajectory, _ = run(fleet)
    assert trajectory.failure is None
    assert facts(trajectory) == facts(STAYED)


def test_what_ended_by_itself_is_learnt_with_its_turns() -> None:
    fleet = TwoEngines(foreseen=None, then=LARGE)
    _, watch = run(fleet)
    (learnt,) = fleet.learnt
    assert learnt is not None
    assert list(learnt.turn_tokens) == [2, 2]
    assert [done.payload_tokens for done in learnt.tool_returns] == [2]
    assert [(tp, tokens) for _, tp, tokens in watch.ends] == [(2, 9)]


def test_infrastructure_failures_teach_nothing() -> None:
    class NoEngine(TwoEngines):
        async def generate(self, member: EngineMember, request: GenerationRequest) -> GeneratedTurn:
            raise EngineLostError("all gone")

    fleet = NoEngine(foreseen=None, then=SMALL)
    trajectory, watch = run(fleet)
    assert trajectory.failure is not None
    assert fleet.learnt == [None]
    assert watch.ends == []
