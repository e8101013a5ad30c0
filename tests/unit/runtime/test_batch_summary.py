"""What a batch's trajectories add up to."""

from libra_core.runtime.driver.rollout_client import Wait, summarise_batch
from libra_core.runtime.rollout.store import GroupCounts
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import EngineId, GroupId, PolicyVersion, PromptId, TrajectoryId
from libra_core.types.reports import RolloutReport
from libra_core.types.trajectory import FinishReason, Prompt, ToolReturn, ToolStatus, Trajectory


def returned(status: ToolStatus, duration_s: float, waited_s: float) -> ToolReturn:
    return ToolReturn(tool="bash", status=status, token_ids=(7, 7), duration_s=duration_s, waited_s=waited_s)


def summary(*samples: tuple[ToolReturn, ...]) -> RolloutReport:
    trajectories = tuple(
        Trajectory(
            trajectory_id=TrajectoryId(f"g.{number}"),
            group_id=GroupId("g"),
            prompt_id=PromptId("p"),
            sample_index=number,
            token_ids=(1, 2, 3),
            loss_mask=(0, 1, 1),
            logprobs=(0.0, -1.0, -1.0),
            prompt_tokens=1,
            versions=(),
            turns=1 + len(tools),
            tool_returns=tools,
            finish_reason=FinishReason.STOP,
            engine_history=(EngineId("engine-0"),),
            started_s=0.0,
            finished_s=1.0,
        )
        for number, tools in enumerate(samples)
    )
    prompt = Prompt(prompt_id=PromptId("p"), token_ids=(1,), text="?", answers=())
    group = TrajectoryGroup(index=0, prompt=prompt, started_version=PolicyVersion(0), trajectories=trajectories)
    return summarise_batch(0, [group], GroupCounts(), Wait(), (0.0, 0.0))


def test_tools_and_their_waits_for_a_place_are_counted_apart() -> None:
    report = summary(
        (returned(ToolStatus.OK, 1.0, 0.0), returned(ToolStatus.TIMEOUT, 3.0, 8.0)), (returned(ToolStatus.MALFORMED, 0.0, 1.0),)
    )
    assert (report.tool_calls, report.tool_errors, report.tool_timeouts, report.tool_malformed) == (3, 2, 1, 1)
    assert (report.tool_mean_s, report.tool_queue_mean_s, report.tool_queue_max_s) == (4.0 / 3, 3.0, 8.0)
    assert report.longest_tool_s == 12.0


def test_a_batch_without_tools_has_no_times_of_tools() -> None:
    report = summary((), ())
    assert (report.tool_calls, report.tool_mean_s, report.tool_p90_s, report.tool_queue_max_s) == (0, 0.0, 0.0, 0.0)
