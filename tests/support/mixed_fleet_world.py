"""An event simulation of asynchronous rollout on a fleet of several TP degrees, where a real routing policy makes every choice.

Engines decode fluidly between events at `a + b·batch + c·context`; a prefill holds its engine up. An engine holds at most `slots`
trajectories; the others wait unbound, first come first served. A trajectory keeps its slot and its prefix while a tool runs; a
move computes the whole context again. Groups are admitted under the staleness bound, trained when a batch of complete groups
holds all that are due, and each publication pauses the engines and empties the prefix caches of trajectories that are with a
tool. Its numbers are the feasibility study's (docs/measurements.md#engines-and-trainer-on-an-a800), not those of
`libra_core.costs`.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, RoutingPolicy, TurnContext
from libra_core.routing.evaluate.recorded import RecordedTrajectory
from libra_core.types.ids import EngineId, PromptId, TrajectoryId
from libra_core.types.trajectory import ToolOutcome


@dataclass(frozen=True, slots=True)
class EngineLaw:
    """Qwen3-14B on A800 (derived from measured A100 kernels): decode step, prefill, KV cache."""

    a_s: float
    b_s: float
    c_s: float
    prefill_s: float
    kv_tokens: int


LAWS = {
    1: EngineLaw(21.0e-3, 41e-6, 0.112e-6, 140e-6, 241_000),
    2: EngineLaw(12.4e-3, 47e-6, 0.056e-6, 91e-6, 662_000),
    4: EngineLaw(7.8e-3, 44e-6, 0.029e-6, 64e-6, 1_505_000),
    8: EngineLaw(5.8e-3, 40e-6, 0.0145e-6, 49e-6, 3_189_000),
}
KV_FILL = 0.7
MOST_RUNNING = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The run around the fleet."""

    groups_per_step: int = 16
    staleness: int = 1
    steps: int = 20
    skip: int = 4
    """First steps, left out of the result."""
    train_gpus: int = 24
    fixed_s: float = 4.0
    publication_s: float = 4.0

    def train_s(self, contexts: list[int]) -> float:
        """14.8e9 parameters, 40 layers of 5120: forward, backward and the log-prob pass, attention by the sum of squares."""
        flops = 8 * 14.8e9 * sum(contexts) + 8 * 5120 * 40 * sum(float(tokens) ** 2 for tokens in contexts)
        return self.fixed_s + flops / (self.train_gpus * 312e12 * (0.42 - 0.0015 * self.train_gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    tokens_per_s: float
    """Generated tokens trained per second."""
    step_s: float
    moves: int
    migrated_share: float
    unfinished: int
    """Admitted trajectories that neither finished nor run, wait or use a tool: 0, or the simulation lost one."""


@dataclass(slots=True)
class _Engine:
    law: EngineLaw
    tp: int
    bucket: int
    slots: int
    bound: int = 0
    clock: float = 0.0
    decoded: float = 0.0
    """Tokens per running sequence since the start."""
    context: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)
    """Heap of (value of `decoded` at which it ends its turn, trajectory)."""
    stamp: int = 0

    def advance(self, now: float) -> None:
        spent, batch = now - self.clock, len(self.running)
        if spent <= 0:
            return
        if batch:
            step, growth = self.step_s, self.law.c_s * batch
            tokens = (math.sqrt(step * step + 2 * growth * spent) - step) / growth
            self.decoded += tokens
            self.context += tokens * batch
        self.clock = now

    @property
    def step_s(self) -> float:
        return self.law.a_s + self.law.b_s * len(self.running) + self.law.c_s * self.context

    def next_end(self) -> float:
        tokens = max(0.0, self.running[0][0] - self.decoded)
        return self.clock + tokens * self.step_s + self.law.c_s * len(self.running) * tokens * tokens / 2


@dataclass(slots=True)
class _Sample:
    trajectory: RecordedTrajectory
    group: int
    identity: TrajectoryId
    context: int
    turn: int = 0
    engine: int | None = None
    cached: int = 0
    generated: int = 0
    done: bool = False
    returns: list[ToolOutcome] = field(default_factory=list)


class MixedFleetWorld:
    """One run. `fleet` lists (tp, number of engines) from the smallest bucket up."""

    def __init__(
        self, groups: list[list[RecordedTrajectory]], fleet: tuple[tuple[int, int], ...], policy: RoutingPolicy, pace: Pace
    ) -> None:
        self.groups, self.policy, self.pace = groups, policy, pace
        mean_context = expected_context(groups)
        self.engines = [
            _Engine(law=LAWS[tp], tp=tp, bucket=bucket, slots=slots_of(tp, mean_context))
            for bucket, (tp, count) in enumerate(fleet)
            for _ in range(count)
        ]
        self.loads = [
            EngineLoad(engine_id=EngineId(str(number)), tp=item.tp, in_flight=0, bucket=item.bucket, capacity=item.slots)
            for number, item in enumerate(self.engines)
        ]
        self.samples: list[_Sample] = []
        self.left = [len(group) for group in groups]
        self.admitted_at: list[int] = []
        self.trained = [False] * len(groups)
        self.waiting: deque[int] = deque()
        self.events: list[tuple[float, int, Callable[..., None], tuple[int, ...]]] = []
        self.sequence = 0
        self.version = 0
        self.training = False
        self.now = 0.0
        self.log: list[tuple[float, int]] = []
        self.moves = 0
        self.migrated = 0

    def run(self) -> FleetResult:
        self._admit_groups()
        while self.version < self.pace.steps:
            if not self.events:
                raise RuntimeError(f"nothing happens any more at step {self.version}: the simulation is stuck")
            self.now, _, action, arguments = heapq.heappop(self.events)
            action(*arguments)
        return self._result()

    def _result(self) -> FleetResult:
        first, last = self.log[self.pace.skip - 1][0], self.log[-1][0]
        tokens = sum(count for _, count in self.log[self.pace.skip :])
        steps = len(self.log) - self.pace.skip
        total = sum(sample.trajectory.final_tokens for sample in self.samples if sample.done)
        bound = sum(engine.bound for engine in self.engines)
        unfinished = sum(not sample.done for sample in self.samples)
        return FleetResult(
            tokens_per_s=tokens / (last - first),
            step_s=(last - first) / steps,
            moves=self.moves,
            migrated_share=self.migrated / total,
            unfinished=unfinished - bound - len(self.waiting),
        )

    def _at(self, when: float, action: Callable[..., None], *arguments: int) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (when, self.sequence, action, arguments))

    def _admit_groups(self) -> None:
        limit = min(len(self.groups), (self.pace.staleness + self.version + 1) * self.pace.groups_per_step)
        while len(self.admitted_at) < limit:
            group = len(self.admitted_at)
            self.admitted_at.append(self.version)
            for trajectory in self.groups[group]:
                identity = TrajectoryId(trajectory.name)
                sample = _Sample(trajectory=trajectory, group=group, identity=identity, context=trajectory.prompt_tokens)
                self.waiting.append(len(self.samples))
                self.samples.append(sample)
        self._bind_waiting()

    def _bind_waiting(self) -> None:
        while self.waiting and any(load.in_flight < (load.capacity or 0) for load in self.loads):
            self._route(self.waiting.popleft())

    def _route(self, index: int) -> None:
        sample = self.samples[index]
        offered = [
            load for number, load in enumerate(self.loads) if number == sample.engine or load.in_flight < (load.capacity or 0)
        ]
        chosen = int(self.policy.choose(self._context(sample, index), offered))
        if chosen != sample.engine:
            if sample.engine is not None:
                self.moves += 1
                self.migrated += sample.context
                self._bind(sample.engine, -1)
            self._bind(chosen, 1)
            sample.cached = 0
            left, sample.engine = sample.engine, chosen
            self._start_turn(index)
            if left is not None:
                self._bind_waiting()
            return
        self._start_turn(index)

    def _context(self, sample: _Sample, index: int) -> TurnContext:
        return TurnContext(
            trajectory_id=sample.identity,
            kind="",
            order=index,
            current=None if sample.engine is None else self.loads[sample.engine].engine_id,
            context_tokens=sample.context,
            tool_returns=sample.returns,
            prompt_id=PromptId(sample.trajectory.prompt_id),
            prompt_text=sample.trajectory.prompt_text,
            generated_tokens=sample.generated,
        )

    def _bind(self, engine: int, change: int) -> None:
        self.engines[engine].bound += change
        load = self.loads[engine]
        self.loads[engine] = EngineLoad(
            engine_id=load.engine_id,
            tp=load.tp,
            in_flight=load.in_flight + change,
            bucket=load.bucket,
            capacity=load.capacity,
        )

    def _start_turn(self, index: int) -> None:
        sample = self.samples[index]
        assert sample.engine is not None
        engine = self.engines[sample.engine]
        engine.advance(self.now)
        engine.clock = max(engine.clock, self.now) + engine.law.prefill_s * (sample.context - sample.cached)
        engine.context += sample.context
        generated = sample.trajectory.turns[sample.turn].generated_tokens
        heapq.heappush(engine.running, (engine.decoded + max(1, generated), index))
        self._schedule(sample.engine)

    def _schedule(self, number: int) -> None:
        engine = self.engines[number]
        engine.stamp += 1
        if engine.running:
            self._at(engine.next_end(), self._engine_event, number, engine.stamp)

    def _engine_event(self, number: int, stamp: int) -> None:
        engine = self.engines[number]
        if stamp != engine.stamp:
            return
        engine.advance(self.now)
        ended: list[int] = []
        while engine.running and engine.running[0][0] - engine.decoded < 1e-6:
            ended.append(heapq.heappop(engine.running)[1])
        for index in ended:
            self._end_turn(index, engine)
        self._schedule(number)
        if any(self.samples[index].done for index in ended):
            self._bind_waiting()
            self._try_training()

    def _end_turn(self, index: int, engine: _Engine) -> None:
        sample = self.samples[index]
        turn = sample.trajectory.turns[sample.turn]
        sample.generated += turn.generated_tokens
        sample.context += turn.generated_tokens
        engine.context = max(0.0, engine.context - sample.context)
        sample.turn += 1
        if sample.turn == len(sample.trajectory.turns):
            self._finish(sample)
            return
        sample.cached = sample.context
        sample.context += turn.payload_tokens
        sample.returns.append(ToolOutcome(tool=turn.tool, status=turn.status, payload_tokens=turn.payload_tokens))
        self._at(self.now + turn.tool_s, self._route, index)

    def _finish(self, sample: _Sample) -> None:
        assert sample.engine is not None
        sample.done = True
        self._bind(sample.engine, -1)
        self.left[sample.group] -= 1
        self.policy.learn(
            FinishedTrajectory(
                trajectory_id=sample.identity,
                prompt_id=PromptId(sample.trajectory.prompt_id),
                turn_tokens=[turn.generated_tokens for turn in sample.trajectory.turns],
                tool_returns=sample.returns,
                prompt_text=sample.trajectory.prompt_text,
            )
        )

    def _try_training(self) -> None:
        if self.training:
            return
        open_groups = [group for group in range(len(self.admitted_at)) if not self.trained[group]]
        due = [group for group in open_groups if self.admitted_at[group] + self.pace.staleness <= self.version]
        ready = [group for group in open_groups if not self.left[group]]
        picked = (due + [group for group in ready if group not in due])[: self.pace.groups_per_step]
        if any(self.left[group] for group in due) or len(picked) < self.pace.groups_per_step:
            return
        for group in picked:
            self.trained[group] = True
        members = [sample for sample in self.samples if sample.group in set(picked)]
        self.training = True
        train_s = self.pace.train_s([sample.trajectory.final_tokens for sample in members])
        generated = sum(sample.trajectory.generated_tokens for sample in members)
        self._at(self.now + train_s, self._publish, generated)

    def _publish(self, generated: int) -> None:
        self.training = False
        self.version += 1
        self.log.append((self.now, generated))
        for number, engine in enumerate(self.engines):
            engine.advance(self.now)
            engine.clock = max(engine.clock, self.now) + self.pace.publication_s
            self._schedule(number)
        running = {index for engine in self.engines for _, index in engine.running}
        for index, sample in enumerate(self.samples):
            if not sample.done and index not in running:
                sample.cached = 0
        self._admit_groups()
        self._try_training()


def slots_of(tp: int, mean_context: float) -> int:
    """Trajectories an engine holds: a share of its KV cache in expected context."""
    return max(1, min(MOST_RUNNING, int(KV_FILL * LAWS[tp].kv_tokens / mean_context)))


def expected_context(groups: list[list[RecordedTrajectory]]) -> float:
    """Resident context, weighted by generated tokens."""
    weighted = total = 0.0
    for trajectory in (member for group in groups for member in group):
        context = float(trajectory.prompt_tokens)
        for turn in trajectory.turns:
            context += turn.generated_tokens
            weighted += turn.generated_tokens * context
            total += turn.generated_tokens
            context += turn.payload_tokens
    return weighted / total
