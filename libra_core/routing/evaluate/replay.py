"""Replays recorded trajectories through a policy in virtual time.

A fixed number of trajectories is in flight. A turn lasts its tokens times the step time of the bucket it runs in, then its tool
runs, then the policy is asked again. A trajectory is learnt from when it ends, so those in flight beside it, its siblings among
them, are predicted without it. The time decides only who knows what when and how loaded the engines look; seconds are charged
by the cost table.
"""

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, RoutingPolicy, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import CostTable
from libra_core.routing.evaluate.orders import Visit
from libra_core.types.ids import EngineId, PromptId, TrajectoryId
from libra_core.types.trajectory import ToolOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayWorld:
    """The fleet that trajectories are replayed on, and what it charges."""

    costs: CostTable
    engines_per_bucket: tuple[int, ...]
    in_flight: int

    @property
    def buckets(self) -> Buckets:
        return self.costs.buckets

    def engines(self) -> list[EngineLoad]:
        """All of them, idle."""
        degrees = [
            (bucket, self.buckets.degrees[bucket]) for bucket, count in enumerate(self.engines_per_bucket) for _ in range(count)
        ]
        return [
            EngineLoad(engine_id=EngineId(f"engine-{number}"), tp=tp, in_flight=0, bucket=bucket)
            for number, (bucket, tp) in enumerate(degrees)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """How one trajectory was routed."""

    epoch: int
    truth: int
    """Bucket of its total generated length."""
    generated_tokens: int
    final_tokens: int
    decisions: tuple[int, ...]
    """Bucket chosen before each turn, `[turns]`."""
    moves: int
    """Changes of engine."""
    migrated_tokens: int
    """Context carried to another engine, over all moves."""
    charged_s: float
    best_s: float
    """Charge of staying from the first token on in the bucket that hindsight finds cheapest."""
    decision_ns: tuple[int, ...]

    @property
    def regret_s(self) -> float:
        return self.charged_s - self.best_s


def replay(visits: Sequence[Visit], policy: RoutingPolicy, world: ReplayWorld) -> list[Routed]:
    """Every visit once, in the order of `visits`, at most `world.in_flight` at a time; results in that order."""
    return _Replay(visits, policy, world).run()


@dataclass(slots=True)
class _Flight:
    visit: Visit
    trajectory_id: TrajectoryId
    order: int
    turn: int = 0
    engine: int | None = None
    generated: int = 0
    context: int = 0
    returns: list[ToolOutcome] = field(default_factory=list[ToolOutcome])
    decisions: list[int] = field(default_factory=list[int])
    decision_ns: list[int] = field(default_factory=list[int])
    moves: int = 0
    migrated: int = 0
    charged_s: float = 0.0


class _Replay:
    def __init__(self, visits: Sequence[Visit], policy: RoutingPolicy, world: ReplayWorld) -> None:
        self._policy = policy
        self._world = world
        self._engines = world.engines()
        self._number = {engine.engine_id: number for number, engine in enumerate(self._engines)}
        self._flights = [
            _Flight(visit=visit, trajectory_id=trajectory_id(visit, order), order=order, context=visit.trajectory.prompt_tokens)
            for order, visit in enumerate(visits)
        ]

    def run(self) -> list[Routed]:
        ready: list[tuple[float, int]] = []
        results: dict[int, Routed] = {}
        waiting = iter(self._flights)
        clock = 0.0
        while True:
            while len(ready) < self._world.in_flight and (flight := next(waiting, None)) is not None:
                heapq.heappush(ready, (clock, flight.order))
            if not ready:
                return [results[order] for order in range(len(self._flights))]
            clock, order = heapq.heappop(ready)
            flight = self._flights[order]
            if flight.turn == len(flight.visit.trajectory.turns):
                results[order] = self._finish(flight)
            else:
                heapq.heappush(ready, (clock + self._take_turn(flight), order))

    def _take_turn(self, flight: _Flight) -> float:
        """Ask, move, generate; the seconds until the tool has answered."""
        chosen = self._choose(flight)
        bucket = self._engines[chosen].bucket
        costs = self._world.costs
        if chosen != flight.engine:
            if flight.engine is not None:
                flight.moves += 1
                flight.migrated += flight.context
                flight.charged_s += costs.move_s(bucket, flight.context)
                self._bind(flight.engine, -1)
            self._bind(chosen, 1)
            flight.engine = chosen
        flight.decisions.append(bucket)
        trajectory = flight.visit.trajectory
        turn = trajectory.turns[flight.turn]
        before = trajectory.generated_tokens - turn.generated_tokens
        flight.charged_s += costs.decode_s(bucket, before, turn.generated_tokens)
        flight.generated += turn.generated_tokens
        flight.context += turn.generated_tokens
        flight.turn += 1
        lasts_s = turn.generated_tokens * costs.step_s[bucket]
        if flight.turn == len(trajectory.turns):
            return lasts_s
        flight.context += turn.payload_tokens
        flight.returns.append(ToolOutcome(tool=turn.tool, status=turn.status, payload_tokens=turn.payload_tokens))
        return lasts_s + turn.tool_s

    def _choose(self, flight: _Flight) -> int:
        trajectory = flight.visit.trajectory
        context = TurnContext(
            trajectory_id=flight.trajectory_id,
            kind="",
            order=flight.order,
            current=None if flight.engine is None else self._engines[flight.engine].engine_id,
            context_tokens=flight.context,
            tool_returns=tuple(flight.returns),
            prompt_id=PromptId(trajectory.prompt_id),
            prompt_text=trajectory.prompt_text,
            generated_tokens=flight.generated,
        )
        started = time.perf_counter_ns()
        engine_id = self._policy.choose(context, self._engines)
        flight.decision_ns.append(time.perf_counter_ns() - started)
        return self._number[engine_id]

    def _bind(self, engine: int, change: int) -> None:
        load = self._engines[engine]
        self._engines[engine] = replace(load, in_flight=load.in_flight + change)

    def _finish(self, flight: _Flight) -> Routed:
        assert flight.engine is not None, "a trajectory has at least one turn"
        self._bind(flight.engine, -1)
        trajectory = flight.visit.trajectory
        self._policy.learn(as_finished(flight.visit, flight.trajectory_id))
        total, costs = trajectory.generated_tokens, self._world.costs
        return Routed(
            epoch=flight.visit.epoch,
            truth=self._world.buckets.of(total),
            generated_tokens=total,
            final_tokens=trajectory.final_tokens,
            decisions=tuple(flight.decisions),
            moves=flight.moves,
            migrated_tokens=flight.migrated,
            charged_s=flight.charged_s,
            best_s=min(costs.decode_s(bucket, 0, total) for bucket in range(len(self._world.buckets))),
            decision_ns=tuple(flight.decision_ns),
        )


def trajectory_id(visit: Visit, order: int) -> TrajectoryId:
    """Unique in a replay."""
    return TrajectoryId(f"{order}/{visit.trajectory.name}")


def as_finished(visit: Visit, identity: TrajectoryId) -> FinishedTrajectory:
    """What a router is told of it in the end."""
    turns = visit.trajectory.turns
    return FinishedTrajectory(
        trajectory_id=identity,
        prompt_id=PromptId(visit.trajectory.prompt_id),
        turn_tokens=tuple(turn.generated_tokens for turn in turns),
        tool_returns=tuple(
            ToolOutcome(tool=turn.tool, status=turn.status, payload_tokens=turn.payload_tokens) for turn in turns[:-1]
        ),
        prompt_text=visit.trajectory.prompt_text,
    )
