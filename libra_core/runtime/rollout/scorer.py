"""Reward actor: scores groups as they finish, against a deadline per trajectory, and computes group advantages."""

import asyncio
import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

from libra_core.algorithms.advantages import group_advantages
from libra_core.borders import reward_of
from libra_core.config import LibraConfig
from libra_core.config.rollout import RolloutConfig
from libra_core.ports.environment import Environment
from libra_core.runtime.base.rpc import CALL_DEADLINE_S, ActorHandle, reply
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import BatchId
from libra_core.types.reports import RewardReport, TrajectoryText
from libra_core.types.trajectory import Failure, FailureKind, FinishReason, Prompt, Trajectory
from libra_core.workloads.build import build_workload
from libra_core.workloads.work_clock import WorkClock

logger = logging.getLogger(__name__)

_TRIES = 2


class RewardActor:
    """Stateless. A scorer that raises or hangs is tried again, then the trajectory is marked failed; it never scores 0."""

    def __init__(self, config: LibraConfig, model_folder: str, store: ActorHandle) -> None:
        self._config = config
        self._environment: Environment = build_workload(config, Path(model_folder)).environment
        self._store = store
        self._threads = ThreadPoolExecutor(config.rollout.tool_threads, thread_name_prefix="scores")

    async def score_group(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """Grade every sample and give each its group advantage; a sample that cannot be scored is marked failed."""
        rollout = self._config.rollout
        asyncio.get_running_loop().set_default_executor(self._threads)
        scored = await asyncio.gather(*(score_one(self._environment, group.prompt, t, rollout) for t in group.trajectories))
        return replace(group, trajectories=with_advantages(scored, self._config.training.loss.advantage))

    async def report(self, batch_id: BatchId) -> RewardReport:
        """The reward spread of a batch."""
        start_s = time.monotonic()
        groups = await self._groups(batch_id)
        return summarise(batch_id, groups, duration_s=time.monotonic() - start_s)

    async def samples(self, batch_id: BatchId, count: int) -> list[TrajectoryText]:
        """Trajectories as text for people: the first sample of each of the first groups."""
        groups = await self._groups(batch_id)
        return [
            TrajectoryText(
                trajectory=t.trajectory_id,
                kind=group.prompt.kind,
                reward=t.reward,
                advantage=t.advantage,
                turns=t.turns,
                generated_tokens=t.generated_tokens,
                engines=",".join(t.engine_history),
                text=self._environment.render(t.token_ids),
                answers=" | ".join(group.prompt.answers),
            )
            for group in groups[:count]
            for t in group.trajectories[:1]
        ]

    async def _groups(self, batch_id: BatchId) -> list[TrajectoryGroup]:
        what = f"the trajectory store's groups of {batch_id}"
        return await reply("the scorer", what, self._store.groups.remote(batch_id), CALL_DEADLINE_S)


def patience_s(limits: RolloutConfig) -> float:
    """`score_group` takes no longer: each try of each sample has its own bounds, and samples are scored side by side."""
    return _TRIES * (limits.score_deadline_s + limits.queue_deadline_s)


def with_advantages(samples: Sequence[Trajectory], kind: Literal["group_std", "group_mean"]) -> tuple[Trajectory, ...]:
    """Each against the others that have a reward; those without one have no advantage either."""
    rewards = {t.sample_index: t.reward for t in samples if t.failure is None and t.reward is not None}
    advantages = dict(zip(rewards, group_advantages(list(rewards.values()), kind=kind) or (), strict=True))
    return tuple(t.with_advantage(advantages[t.sample_index]) if t.sample_index in advantages else t for t in samples)


def is_masked(trajectory: Trajectory) -> bool:
    """Sound, but cut at the length limit and left without a reward."""
    return trajectory.failure is None and trajectory.reward is None and trajectory.finish_reason is FinishReason.LENGTH


async def score_one(environment: Environment, prompt: Prompt, trajectory: Trajectory, limits: RolloutConfig) -> Trajectory:
    """Scored, or marked failed after `_TRIES` tries. One that has failed or been scored is kept: a retry scores a group again.

    One cut at the length limit has not answered: `rollout.on_length_limit` says what it is worth.
    """
    is_cut = trajectory.finish_reason is FinishReason.LENGTH
    if trajectory.failure is not None or trajectory.reward is not None or (is_cut and limits.on_length_limit == "mask"):
        return trajectory
    message = ""
    for _ in range(_TRIES):
        clock = WorkClock(
            f"the score of {trajectory.trajectory_id}", work_s=limits.score_deadline_s, queue_s=limits.queue_deadline_s
        )
        try:
            reward = reward_of(await clock.hold(environment.score(prompt, trajectory)), trajectory.trajectory_id)
            return trajectory.scored(min(reward, 0.0) if is_cut and limits.on_length_limit == "penalise" else reward)
        except TimeoutError as error:
            message = f"no score within rollout.score_deadline_s = {limits.score_deadline_s:.0f} s" if clock.late else repr(error)
        except Exception as error:  # a scorer may raise anything; that is infrastructure, not the policy's mistake
            logger.exception("scorer failed for %s", trajectory.trajectory_id)
            message = f"{type(error).__name__}: {error}"
            if clock.starved:  # another try would wait as long again, and outlast the batch
                break
    return trajectory.failed(Failure(kind=FailureKind.SCORER, message=message))


def summarise(batch_id: BatchId, groups: list[TrajectoryGroup], *, duration_s: float) -> RewardReport:
    """Mean, spread and the share of groups that teach something."""
    rewards = [t.reward for g in groups for t in g.usable if t.reward is not None]
    by_kind: dict[str, list[float]] = defaultdict(list)
    signal = 0
    for group in groups:
        of_group = [t.reward for t in group.usable if t.reward is not None]
        signal += len(set(of_group)) > 1
        by_kind[group.prompt.kind].extend(of_group)
    return RewardReport(
        batch_id=batch_id,
        mean=statistics.fmean(rewards) if rewards else float("nan"),
        std=statistics.pstdev(rewards) if rewards else float("nan"),
        groups_with_signal=signal / max(1, len(groups)),
        failed=sum(t.failure is not None for g in groups for t in g.trajectories),
        masked=sum(is_masked(t) for g in groups for t in g.trajectories),
        by_kind={kind: statistics.fmean(values) for kind, values in sorted(by_kind.items()) if values},
        duration_s=duration_s,
    )
