"""Builders for routing tests."""

import math
from collections.abc import Sequence

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import CostTable, table_for
from libra_core.runtime.rollout.kv_moves import MoveWork
from libra_core.types.ids import EngineId, PromptId, TrajectoryId
from libra_core.types.trajectory import ToolOutcome, ToolStatus

BUCKETS = Buckets(degrees=(1, 2, 4), limits=(1000.0, 4000.0, math.inf))
LENGTHS = tuple(float(length) for length in range(100, 10_000, 100))


def costs(buckets: Buckets = BUCKETS) -> CostTable:
    return table_for(buckets, LENGTHS)


def outcome(status: ToolStatus = ToolStatus.OK, tokens: int = 50, tool: str = "bash") -> ToolOutcome:
    return ToolOutcome(tool=tool, status=status, payload_tokens=tokens)


OK, TIMEOUT = outcome(), outcome(ToolStatus.TIMEOUT)


def finished(
    turn_tokens: Sequence[int], returns: Sequence[ToolOutcome] | None = None, prompt: str = "p", name: str = "done"
) -> FinishedTrajectory:
    return FinishedTrajectory(
        trajectory_id=TrajectoryId(name),
        prompt_id=PromptId(prompt),
        turn_tokens=turn_tokens,
        tool_returns=[OK] * (len(turn_tokens) - 1) if returns is None else returns,
        prompt_text=prompt,
    )


def turn(
    name: str = "t",
    *,
    prompt: str = "p",
    current: str | None = None,
    returns: Sequence[ToolOutcome] = (),
    generated: int = 0,
    context: int = 100,
) -> TurnContext:
    return TurnContext(
        trajectory_id=TrajectoryId(name),
        kind="",
        order=0,
        current=None if current is None else EngineId(current),
        context_tokens=context,
        tool_returns=returns,
        prompt_id=PromptId(prompt),
        prompt_text=prompt,
        generated_tokens=generated,
    )


def engine(name: str, bucket: int = 0, *, load: int = 0, capacity: int | None = None) -> EngineLoad:
    tp = BUCKETS.degrees[bucket]
    return EngineLoad(engine_id=EngineId(name), tp=tp, bucket=bucket, in_flight=load, capacity=capacity)


FLEET = (engine("small", 0), engine("middle", 1), engine("large", 2))


class CountedMoves:
    """Keeps what an agent loop reports of its moves."""

    def __init__(self) -> None:
        self.first_tokens: list[float] = []
        self.works: list[MoveWork] = []
        self.aheads = 0
        self.ends: list[tuple[FinishedTrajectory, int, int]] = []

    def note_first_token(self, seconds: float) -> None:
        self.first_tokens.append(seconds)

    def note_work(self, work: MoveWork) -> None:
        self.works.append(work)

    def note_ahead(self, seconds: float) -> None:
        self.aheads += 1

    def note_end(self, finished: FinishedTrajectory, tp: int, context_tokens: int) -> None:
        self.ends.append((finished, tp, context_tokens))
