"""One GRPO group from prompt to score: all samples at once, then the policy for samples that infrastructure lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from libra_core.config.rollout import RolloutConfig
from libra_core.runtime.rollout.agent_loop import AgentLoop, AgentTools
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import GroupId, PolicyVersion, TrajectoryId
from libra_core.types.trajectory import Failure, FailureKind, Prompt, Trajectory

logger = logging.getLogger(__name__)

_MIN_PARTIAL = 2
"""A group of one sample has no spread to learn from."""


class GroupVerdict(StrEnum):
    """What becomes of a group whose samples have all ended."""

    COMPLETE = "complete"
    RETRY = "retry"
    PARTIAL = "partial"
    DROP = "drop"


def judge_group(usable: int, size: int, retries: int, config: RolloutConfig) -> GroupVerdict:
    """Apply `rollout.on_failed_group`; a retry that is used up falls back to the partial group, then to dropping it."""
    if usable == size:
        return GroupVerdict.COMPLETE
    if config.on_failed_group == "retry" and retries < config.max_group_retries:
        return GroupVerdict.RETRY
    if config.on_failed_group != "drop" and usable >= _MIN_PARTIAL:
        return GroupVerdict.PARTIAL
    return GroupVerdict.DROP


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRunner:
    """Runs the samples of one group; a retry runs only the samples that failed."""

    config: RolloutConfig
    tools: AgentTools
    score: Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup]]
    on_retry: Callable[[int], None]

    async def run(
        self, index: int, prompt: Prompt, version: PolicyVersion, losses: int = 0
    ) -> tuple[TrajectoryGroup, GroupVerdict]:
        """`losses`: groups of this prompt that came to nothing before; ids of trajectories are used once in a run."""
        first = losses * (self.config.max_group_retries + 1)
        samples = await asyncio.gather(*(self._sample(index, prompt, i, first) for i in range(self.config.group_size)))
        group = TrajectoryGroup(index=index, prompt=prompt, started_version=version, trajectories=tuple(samples))
        group = await self.score(group)
        while True:
            verdict = judge_group(len(group.usable), self.config.group_size, group.retries, self.config)
            if verdict is not GroupVerdict.RETRY:
                return group, verdict
            self.on_retry(index)
            group = await self.score(await self._rerun_failed(group, first))

    async def _rerun_failed(self, group: TrajectoryGroup, first: int) -> TrajectoryGroup:
        retries = group.retries + 1
        for failed in (t for t in group.trajectories if t.failure is not None):
            logger.warning("sample %s is run again (%d): %s", failed.trajectory_id, retries, failed.failure)

        async def again(old: Trajectory) -> Trajectory:
            if old.failure is None:
                return old
            return await self._sample(group.index, group.prompt, old.sample_index, first + retries)

        samples = await asyncio.gather(*(again(old) for old in group.trajectories))
        return replace(group, trajectories=tuple(samples), retries=retries)

    async def _sample(self, index: int, prompt: Prompt, sample: int, attempt: int) -> Trajectory:
        group_id = GroupId(f"g{index:06d}")
        return await AgentLoop(
            trajectory_id=TrajectoryId(f"{group_id}.{sample}.{attempt}"),
            group_id=group_id,
            order=index,
            sample_index=sample,
            prompt=prompt,
            config=self.config,
            tools=self.tools,
        ).run()


_WHAT = {
    FailureKind.ENGINE: "an engine failed",
    FailureKind.TOOL_RUNNER: "its tools failed",
    FailureKind.SCORER: "its reward failed",
    FailureKind.PROMPT: "its prompt cannot be answered",
}
_LONGEST = 400


class LostGroups:
    """Counts groups lost in a row, in the order in which they end. Owned by the coordinator's event loop."""

    def __init__(self, bound: int) -> None:
        """`bound`: `rollout.max_lost_groups`."""
        self._bound = bound
        self._in_a_row = 0
        self.verdict: str | None = None
        """Why the run ends; None while it may go on."""

    def keep(self) -> None:
        """A group can be trained, whole or in part."""
        self._in_a_row = 0

    def lose(self, group: TrajectoryGroup) -> None:
        self._in_a_row += 1
        if self._in_a_row >= self._bound and self.verdict is None:
            self.verdict = (
                f"{self._in_a_row} groups in a row were lost (rollout.max_lost_groups = {self._bound}); of the newest, group "
                f"{group.index}, {newest_failure(group)}; mend that and resume the run, which issues the lost prompts again"
            )


def is_unanswerable(group: TrajectoryGroup) -> bool:
    """Its prompt is at fault: no outage, and no better another time."""
    return any(t.failure is not None and t.failure.kind is FailureKind.PROMPT for t in group.trajectories)


def newest_failure(group: TrajectoryGroup) -> str:
    """In words: what the sample that ended last with a failure died of."""
    failed = [t for t in group.trajectories if t.failure is not None]
    if not failed:
        return "too few samples were usable"
    return _in_words(max(failed, key=lambda t: t.finished_s).failure)


def _in_words(failure: Failure | None) -> str:
    assert failure is not None
    message = " ".join(failure.message.split())
    return f"{_WHAT[failure.kind]}: {message[:_LONGEST]}"
