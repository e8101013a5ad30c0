"""The routing policies of `libra_core.routing` at work in a simulated world with a mixed fleet."""

import time

import numpy as np

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, RoutingPolicy, TurnContext
from libra_core.routing.buckets import Buckets, buckets_from_lengths
from libra_core.routing.build import RouterSetup, build_policy
from libra_core.routing.costs import table_for
from libra_core.simulation import kernel
from libra_core.simulation.kernel.records import DONE
from libra_core.simulation.truth import Truth
from libra_core.simulation.workload.generate import STATUSES
from libra_core.simulation.workload.trajectories import Floats, Trajectories
from libra_core.simulation.world import World
from libra_core.types.ids import EngineId, PromptId, TrajectoryId
from libra_core.types.plan import Plan, RolloutLayout
from libra_core.types.trajectory import ToolOutcome, ToolStatus

_LEARN_EVERY = 64
"""Choices between two polls for finished trajectories."""


def router_for(name: str | None, plan: Plan, work: Trajectories, history: Trajectories, truth: Truth) -> "PolicyRouter | None":
    """None on equal engines, where every policy comes to the kernel's own least-loaded rule."""
    if name is None or len(plan.rollout.engines) < 2:
        return None
    buckets = buckets_of(plan.rollout, history.total_generated)
    totals = work.total_generated
    setup = RouterSetup(
        buckets=buckets,
        costs=table_for(buckets, sorted(history.total_generated.tolist()), truth.engines),
        total_tokens=lambda trajectory: round(totals[int(trajectory)]),
    )
    return PolicyRouter(build_policy(name, setup), buckets)


def buckets_of(rollout: RolloutLayout, generated: Floats) -> Buckets:
    """Limits at which each class of engines is meant for as large a share of the tokens as it has of the GPUs."""
    engines = sorted(rollout.engines)
    ordered = np.sort(generated)
    tokens = np.cumsum(ordered) / ordered.sum()
    upto = np.cumsum([tp * count for tp, count in engines])[:-1] / rollout.num_gpus
    quantiles = [float(np.searchsorted(tokens, share) / ordered.size) for share in upto]
    return buckets_from_lengths(ordered.tolist(), [tp for tp, _ in engines], quantiles)


class PolicyRouter:
    """Tells a policy what a real coordinator would tell it, and nothing of the lengths to come."""

    def __init__(self, policy: RoutingPolicy, buckets: Buckets) -> None:
        self._policy = policy
        self._buckets = buckets
        self._returns: dict[int, list[ToolOutcome]] = {}
        self._choices = self._spent_ns = 0
        self._finished = self._right = 0
        self._survey = np.zeros((0, 3))

    def choose(self, world: World, trajectory: int) -> int:
        began = time.process_time_ns()
        chosen = self._choose(world, trajectory)
        self._spent_ns += time.process_time_ns() - began
        return chosen

    def decision_us(self) -> float:
        """CPU time of one choice, learning and the survey of the engines included; nan before the first."""
        return self._spent_ns / 1000 / self._choices if self._choices else float("nan")

    def _choose(self, world: World, trajectory: int) -> int:
        self._choices += 1
        if self._choices % _LEARN_EVERY == 0:
            self._learn(world)
        row = world.state.trajectories[trajectory]
        home = int(row["engine"])
        turn = TurnContext(
            trajectory_id=TrajectoryId(str(trajectory)),
            kind="",
            order=trajectory // world.pacing.group_size,
            current=EngineId(str(home)) if home >= 0 else None,
            context_tokens=int(row["held"] + row["arriving"]),
            tool_returns=self._outcomes(world, trajectory, int(row["turn"])),
            prompt_id=PromptId(str(trajectory // world.pacing.group_size)),
            generated_tokens=int(row["generated"]),
        )
        return int(self._policy.choose(turn, self._loads(world, trajectory, home)))

    def observe(self, world: World, step: int) -> None:
        self._learn(world)

    def accuracy(self) -> float:
        return self._right / self._finished if self._finished else float("nan")

    def _loads(self, world: World, trajectory: int, home: int) -> list[EngineLoad]:
        """Engines with room, and the one that holds the prefix."""
        if len(self._survey) != len(world.state.engines):
            self._survey = np.zeros((len(world.state.engines), 3))
        kernel.survey(world.state, trajectory, self._survey)
        degrees = self._buckets.degrees
        return [
            EngineLoad(
                engine_id=EngineId(str(e)),
                tp=int(tp),
                in_flight=int(bound),
                bucket=degrees.index(int(tp)),
            )
            for e, (room, tp, bound) in enumerate(self._survey.tolist())
            if room or e == home
        ]

    def _outcomes(self, world: World, trajectory: int, turn: int) -> list[ToolOutcome]:
        """Grows at its end only, as policies demand."""
        known = self._returns.setdefault(trajectory, [])
        work, first = world.trajectories, int(world.trajectories.first_turn[trajectory])
        for place in range(first + len(known), first + turn):
            status = ToolStatus(STATUSES[int(work.status[place])])
            known.append(ToolOutcome(tool="tool", status=status, payload_tokens=round(float(work.returned[place]))))
        return known

    def _learn(self, world: World) -> None:
        rows = world.state.trajectories
        for trajectory in [i for i in self._returns if rows["phase"][i] == DONE]:
            self._outcomes(world, trajectory, int(world.trajectories.turns[trajectory]) - 1)
            work, first = world.trajectories, int(world.trajectories.first_turn[trajectory])
            tokens = work.generated[first : first + int(work.turns[trajectory])]
            self._policy.learn(
                FinishedTrajectory(
                    trajectory_id=TrajectoryId(str(trajectory)),
                    prompt_id=PromptId(str(trajectory // world.pacing.group_size)),
                    turn_tokens=[max(1, round(value)) for value in tokens.tolist()],
                    tool_returns=self._returns.pop(trajectory),
                )
            )
            self._finished += 1
            served = self._buckets.degrees.index(int(rows["last_tp"][trajectory]))
            self._right += served == self._buckets.of(float(tokens.sum())) and int(rows["moves"][trajectory]) <= 1
