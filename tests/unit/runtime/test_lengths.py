from hypothesis import given
from hypothesis import strategies as st

from libra_core.runtime.rollout.store import record_of
from libra_core.types.ids import EngineId, GroupId, PolicyVersion, PromptId, TrajectoryId
from libra_core.types.trajectory import FinishReason, ToolReturn, ToolStatus, Trajectory, VersionSegment

TURNS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5)


def trajectory(prompt: int, turns: list[tuple[int, int]], *, calls_last: bool) -> Trajectory:
    """Each turn's sampled tokens and those that its tool returned; the last one calls a tool only if told."""
    mask = [0] * prompt
    tools: list[ToolReturn] = []
    for place, (sampled, returned) in enumerate(turns):
        mask += [1] * sampled
        if calls_last or place < len(turns) - 1:
            mask += [0] * returned
            times = {"duration_s": 0.5 + place, "waited_s": 2.0}
            tools.append(ToolReturn(tool="search", status=ToolStatus.OK, token_ids=(1,) * returned, **times))
    return Trajectory(
        trajectory_id=TrajectoryId("g0.0"),
        group_id=GroupId("g0"),
        prompt_id=PromptId("0"),
        sample_index=0,
        token_ids=(1,) * len(mask),
        loss_mask=tuple(mask),
        logprobs=(0.0,) * len(mask),
        prompt_tokens=prompt,
        versions=(VersionSegment(version=PolicyVersion(0), start=prompt, end=len(mask)),),
        turns=len(turns),
        tool_returns=tuple(tools),
        finish_reason=FinishReason.STOP,
        engine_history=(EngineId("engine-0"), EngineId("engine-1")),
        started_s=0.0,
        finished_s=1.0,
    )


@given(prompt=st.integers(1, 9), turns=TURNS, calls_last=st.booleans())
def test_a_record_has_every_token_and_second(prompt: int, turns: list[tuple[int, int]], calls_last: bool) -> None:
    finished = trajectory(prompt, turns, calls_last=calls_last)
    record = record_of(finished, step=3)
    assert record.generated_tokens == tuple(sampled for sampled, _ in turns)
    assert record.prompt_tokens + sum(record.generated_tokens) + sum(record.tool_tokens) == len(finished.token_ids)
    assert sum(record.tool_s) == sum(tool.duration_s + tool.waited_s for tool in finished.tool_returns)
    assert len(record.tool_s) == len(record.tool_tokens)
    assert (record.step, record.engine) == (3, "engine-1")
