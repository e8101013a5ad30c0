"""The agent loop assembles exactly what was sampled, over tool calls, engine losses and aborts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from libra_core.config.rollout import RolloutConfig
from libra_core.errors import EngineLostError, SandboxLostError
from libra_core.ports.environment import Episode, TurnStops
from libra_core.runtime.rollout.agent_loop import AgentLoop, AgentTools
from libra_core.runtime.rollout.fleet import EngineMember
from libra_core.runtime.rollout.kv_moves import stay
from libra_core.types.ids import EngineId, GroupId, PolicyVersion, PromptId, TrajectoryId
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
    VersionSegment,
)
from libra_core.workloads.work_clock import queued
from support import virtual_time
from support.routing import CountedMoves

CALL, END, MAYBE, SPELLED = 90, 91, 92, 93
PROMPT = Prompt(prompt_id=PromptId("p"), token_ids=(1, 2, 3), text="?", answers=("a",))


class EchoEnvironment:
    """A turn that ends in CALL is a tool call; the tool answers with two tokens."""

    def __init__(self, tool: Callable[[], Awaitable[None]] | None = None, hangs: str = "", end_raises: bool = False) -> None:
        self._tool = tool
        self.hangs = hangs
        self._end_raises = end_raises
        self.closed = 0

    async def _pause(self, where: str) -> None:
        if where == self.hangs:
            await asyncio.Event().wait()

    def stops(self) -> TurnStops:
        return TurnStops(token_ids=(CALL, END), candidates=(MAYBE,), texts=(f"{SPELLED}, {MAYBE}",))

    async def reset(self, prompt: Prompt) -> Episode:
        await self._pause("reset")
        return self

    async def submission(self) -> str:
        await self._pause("submission")
        return "kept"

    async def close(self) -> None:
        self.closed += 1
        await self._pause("close")
        if self._end_raises:
            raise OSError("the sandbox's folder is gone")

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        return ToolCall(tool="echo", argument="") if turn_token_ids[-1] in {CALL, MAYBE} else None

    async def step(self, call: ToolCall) -> ToolReturn:
        if self._tool is not None:
            await self._tool()
        return ToolReturn(tool=call.tool, status=ToolStatus.OK, token_ids=(50, 51), duration_s=0.0)

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        return ToolReturn(tool=call.tool, status=status, token_ids=(59,), duration_s=0.0)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        return 1.0

    def render(self, token_ids: Sequence[int]) -> str:
        return str(list(token_ids))


def turn(*tokens: int, finish: FinishReason = FinishReason.STOP, version: int = 0, cached: int = 0) -> GeneratedTurn:
    return GeneratedTurn(
        token_ids=tokens,
        logprobs=tuple(-float(t) for t in tokens),
        finish_reason=finish,
        versions=(VersionSegment(version=PolicyVersion(version), start=0, end=len(tokens)),),
        cached_tokens=cached,
        first_token_s=0.0,
        duration_s=0.0,
    )


def run_loop(
    script: list[GeneratedTurn | EngineLostError], environment: EchoEnvironment | None = None, **overrides: float
) -> tuple[Trajectory, list[GenerationRequest]]:
    requests: list[GenerationRequest] = []
    member = EngineMember(engine_id=EngineId("engine-0"), tp=1, kv_tokens=1000, handle=None)
    released: list[int] = []

    async def bind(_: object) -> EngineMember:
        return member

    async def generate(_: EngineMember, request: GenerationRequest) -> GeneratedTurn:
        requests.append(request)
        step = script.pop(0)
        if isinstance(step, EngineLostError):
            raise step
        return step

    async def main() -> Trajectory:
        world = environment or EchoEnvironment()
        tools = AgentTools(
            environment=world,
            bind=bind,
            generate=generate,
            release=lambda _id, _kind, final_tokens, _finished: released.append(final_tokens),
            foresee=stay,
            watch=CountedMoves(),
            record=lambda *_: None,
        )
        config = RolloutConfig().model_copy(update={"max_new_tokens": 10, "max_context_tokens": 40, **overrides})
        loop = AgentLoop(
            trajectory_id=TrajectoryId("t"),
            group_id=GroupId("g"),
            order=0,
            sample_index=0,
            prompt=PROMPT,
            config=config,
            tools=tools,
        )
        trajectory = await loop.run()
        assert released == [len(trajectory.token_ids)], "a trajectory frees its place exactly once"
        assert world.closed == (world.hangs != "reset"), "tools that began are closed exactly once"
        return trajectory

    return virtual_time.run(main()), requests


def test_tool_tokens_are_masked_and_sampled_tokens_keep_their_logprobs() -> None:
    trajectory, requests = run_loop([turn(10, CALL), turn(11, END)])
    assert trajectory.token_ids == (1, 2, 3, 10, CALL, 50, 51, 11, END)
    assert trajectory.loss_mask == (0, 0, 0, 1, 1, 0, 0, 1, 1)
    assert trajectory.logprobs == (0.0, 0.0, 0.0, -10.0, -90.0, 0.0, 0.0, -11.0, -91.0)
    assert trajectory.finish_reason is FinishReason.STOP
    assert requests[1].token_ids == (1, 2, 3, 10, CALL, 50, 51)


def test_a_lost_engine_costs_no_token_already_sampled() -> None:
    trajectory, requests = run_loop([turn(10, CALL), EngineLostError("engine-0 died"), turn(11, END)])
    assert trajectory.token_ids == (1, 2, 3, 10, CALL, 50, 51, 11, END)
    assert trajectory.failure is None
    assert requests[1].token_ids == requests[2].token_ids


def test_an_aborted_turn_goes_on_from_its_partial_tokens_and_keeps_both_versions() -> None:
    trajectory, requests = run_loop([turn(10, 11, finish=FinishReason.ABORT, version=3), turn(12, END, version=4)])
    assert trajectory.token_ids == (1, 2, 3, 10, 11, 12, END)
    assert requests[1].token_ids == (1, 2, 3, 10, 11)
    assert requests[1].max_new_tokens == 8
    assert [(s.version, s.start, s.end) for s in trajectory.versions] == [(3, 3, 5), (4, 5, 7)]
    assert trajectory.oldest_version == 3


def test_the_token_budget_spans_all_turns() -> None:
    trajectory, requests = run_loop([turn(10, 11, 12, CALL), turn(13, 14, 15, 16, 17, 18, finish=FinishReason.LENGTH)])
    assert [r.max_new_tokens for r in requests] == [10, 6]
    assert trajectory.finish_reason is FinishReason.LENGTH
    assert trajectory.generated_tokens == 10


def test_the_last_allowed_turn_may_not_call_a_tool() -> None:
    trajectory, _ = run_loop([turn(10, CALL)], max_turns=1)
    assert trajectory.finish_reason is FinishReason.LENGTH
    assert trajectory.tool_returns == ()


def test_a_tool_past_its_deadline_is_answered_with_status_timeout() -> None:
    slow = EchoEnvironment(tool=lambda: asyncio.sleep(5.0))
    trajectory, _ = run_loop([turn(CALL), turn(END)], slow, tool_deadline_s=0.05)
    assert [r.status for r in trajectory.tool_returns] == [ToolStatus.TIMEOUT]
    assert trajectory.token_ids == (1, 2, 3, CALL, 59, END)


def test_a_turn_goes_on_after_a_token_that_completes_no_tag() -> None:
    script = [turn(10, MAYBE), turn(11, SPELLED, MAYBE), turn(END)]
    trajectory, requests = run_loop(script)
    assert trajectory.token_ids == (1, 2, 3, 10, MAYBE, 11, SPELLED, MAYBE, 50, 51, END)
    assert trajectory.turns == 2
    assert requests[1].token_ids == (1, 2, 3, 10, MAYBE)
    assert requests[0].stop_token_ids == (CALL, END, MAYBE)


def test_a_tool_that_waits_for_a_place_is_not_late_before_it_began() -> None:
    async def crowded() -> None:
        with queued("workload.sandbox.commands_at_once"):
            await asyncio.sleep(2.0)

    trajectory, _ = run_loop([turn(CALL), turn(END)], EchoEnvironment(tool=crowded), tool_deadline_s=1.5)
    (returned,) = trajectory.tool_returns
    assert returned.status is ToolStatus.OK
    assert returned.waited_s > 1.8
    assert returned.duration_s < 1.5


def test_a_tool_that_gets_no_place_is_a_failure_of_infrastructure() -> None:
    async def crowded() -> None:
        with queued("workload.sandbox.commands_at_once"):
            await asyncio.sleep(5.0)

    trajectory, _ = run_loop([turn(CALL)], EchoEnvironment(tool=crowded), queue_deadline_s=0.05)
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.TOOL_RUNNER
    assert (
        "t waited 0.05 s (rollout.queue_deadline_s) for a place: workload.sandbox.commands_at_once" in trajectory.failure.message
    )
    assert trajectory.tool_returns == ()


def test_a_tool_that_raises_a_timeout_of_its_own_is_a_failure_of_infrastructure() -> None:
    async def broken() -> None:
        raise TimeoutError("the connection timed out")

    trajectory, _ = run_loop([turn(CALL)], EchoEnvironment(tool=broken))
    assert trajectory.failure is not None
    assert "the connection timed out" in trajectory.failure.message


def test_what_the_tools_leave_for_scoring_is_kept() -> None:
    assert run_loop([turn(END)])[0].submission == "kept"


@pytest.mark.parametrize(
    ("where", "waits"), [("reset", "t, for its tools, waited"), ("submission", "t, for its submission, waited")]
)
def test_tools_that_never_answer_fail_the_trajectory_at_a_deadline(where: str, waits: str) -> None:
    world = EchoEnvironment(hangs=where)
    trajectory, _ = run_loop([turn(11, END)], world, batch_deadline_s=0.05, score_deadline_s=0.05)
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.TOOL_RUNNER
    assert waits in trajectory.failure.message


def test_tools_that_never_end_cost_nothing_that_was_sampled(caplog: pytest.LogCaptureFixture) -> None:
    trajectory, _ = run_loop([turn(11, END)], EchoEnvironment(hangs="close"), tool_deadline_s=0.05)
    assert trajectory.failure is None
    assert trajectory.token_ids == (1, 2, 3, 11, END)
    assert "t, for its tools to end, waited" in caplog.text


def test_tools_that_break_while_they_end_cost_nothing_that_was_sampled(caplog: pytest.LogCaptureFixture) -> None:
    trajectory, _ = run_loop([turn(11, END)], EchoEnvironment(end_raises=True))
    assert trajectory.failure is None
    assert (trajectory.token_ids, trajectory.submission) == ((1, 2, 3, 11, END), "kept")
    assert "OSError: the sandbox's folder is gone" in caplog.text


def test_a_failure_keeps_its_name_when_the_tools_break_at_their_end_too() -> None:
    async def broken() -> None:
        raise SandboxLostError("no report")

    trajectory, _ = run_loop([turn(CALL)], EchoEnvironment(tool=broken, end_raises=True))
    assert trajectory.failure is not None
    assert trajectory.failure.message == "SandboxLostError: no report"


def test_a_broken_tool_runner_fails_the_trajectory_instead_of_scoring_it() -> None:
    async def broken() -> None:
        raise OSError("sandbox is gone")

    trajectory, _ = run_loop([turn(CALL)], EchoEnvironment(tool=broken))
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.TOOL_RUNNER
    assert trajectory.reward is None


def test_endless_engine_losses_end_the_trajectory_as_an_engine_failure() -> None:
    trajectory, requests = run_loop([EngineLostError("engine-0 died")] * 20)
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.ENGINE
    assert len(requests) == 9


def test_a_prefix_computed_again_is_counted_in_whole_blocks() -> None:
    script = [turn(10, CALL), turn(11, CALL, cached=4), turn(12, END, cached=0)]
    trajectory, _ = run_loop(script, block_size=4, max_turns=5)
    # contexts of 3, 7 and 11 tokens; 5 tokens were computed before turn 2 (one block of 4, cached), 9 before turn 3 (two blocks)
    assert trajectory.context_tokens == 3 + 7 + 11
    assert trajectory.cached_tokens == 4
    assert trajectory.reprefilled_tokens == 8


def test_the_last_sampled_token_of_a_turn_does_not_count_as_computed() -> None:
    size = RolloutConfig().block_size
    filled = tuple(range(100, 100 + size - len(PROMPT.token_ids) - 1))  # with the call's token the context is one whole block
    again, _ = run_loop([turn(*filled, CALL), turn(11, END)], max_new_tokens=100, max_context_tokens=200)
    assert again.reprefilled_tokens == 0


class Returning(EchoEnvironment):
    """Its tool returns what it was made with."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    async def step(self, call: ToolCall) -> ToolReturn:
        return self.answer  # type: ignore[return-value]


def tool_return(token_ids: object) -> ToolReturn:
    return ToolReturn(tool="echo", status=ToolStatus.OK, token_ids=token_ids, duration_s=0.0)  # type: ignore[arg-type]


def test_a_tools_answer_never_grows_a_trajectory_beyond_its_context() -> None:
    trajectory, requests = run_loop([turn(10, CALL)], Returning(tool_return(tuple(range(5_000_000)))))
    assert len(trajectory.token_ids) == 40
    assert trajectory.token_ids[5:8] == (0, 1, 2)
    assert trajectory.token_ids[-1] == 4_999_999
    assert (trajectory.finish_reason, len(requests)) == (FinishReason.LENGTH, 1)
    assert sum(answer.payload_tokens for answer in trajectory.tool_returns) == 35


def test_a_bound_on_answers_leaves_room_to_go_on() -> None:
    trajectory, _ = run_loop([turn(10, CALL), turn(END)], Returning(tool_return(tuple(range(500)))), max_tool_tokens=16)
    assert (len(trajectory.token_ids), trajectory.finish_reason) == (3 + 2 + 16 + 1, FinishReason.STOP)


@pytest.mark.parametrize("answer", [None, "text", tool_return(b"abc"), tool_return((1, -5)), tool_return((1, 2.5))])
def test_an_answer_that_is_none_fails_the_trajectory_and_names_it(answer: object) -> None:
    trajectory, _ = run_loop([turn(CALL)], Returning(answer))
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.TOOL_RUNNER
    assert trajectory.failure.message.startswith("BorderError: the tool of t ")


def test_a_prompt_that_fills_the_context_is_never_answered_for() -> None:
    trajectory, requests = run_loop([], EchoEnvironment(hangs="reset"), max_context_tokens=3)
    assert requests == []
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.PROMPT
    assert "prompt p of t has 3 tokens and leaves no room" in trajectory.failure.message


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_log_probability_that_is_not_finite_is_the_engines_failure(value: float) -> None:
    trajectory, _ = run_loop([replace(turn(10, END), logprobs=(-1.0, value))])
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.ENGINE
    assert trajectory.failure.message == "engine-0 gave a token of t a log-probability that is not finite"
