"""Builders for routing tests: recorded trajectories, and policies whose choices are known beforehand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from libra_core.ports.routing import EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets
from libra_core.routing.costs import CostTable
from libra_core.routing.evaluate.recorded import RecordedTrajectory, RecordedTurn
from libra_core.routing.evaluate.replay import ReplayWorld
from libra_core.types.ids import EngineId, TrajectoryId
from libra_core.types.trajectory import ToolStatus

INFINITY = float("inf")


def recorded(prompt: str, *generated: int, sample: int = 0, payload: int = 50, tool_s: float = 1.0) -> RecordedTrajectory:
    """One trajectory with a prompt of 100 tokens."""
    return RecordedTrajectory(
        name=f"{prompt}/{sample}",
        prompt_id=prompt,
        prompt_text=prompt,
        prompt_tokens=100,
        turns=tuple(
            RecordedTurn(generated_tokens=tokens, tool="search", status=ToolStatus.OK, payload_tokens=payload, tool_s=tool_s)
            for tokens in generated
        ),
    )


def world(*limits: float, in_flight: int = 4, engines_each: int = 2) -> ReplayWorld:
    """Buckets of TP 1, 2, 4, … with steps of 40, 20, 10, … ms; lengths spread evenly up to twice the last limit."""
    degrees = tuple(2**bucket for bucket in range(len(limits) + 1))
    costs = CostTable(
        buckets=Buckets(degrees=degrees, limits=(*limits, INFINITY)),
        step_s=tuple(0.04 / degree for degree in degrees),
        growth=tuple(0.04 for _ in degrees),
        move_s_per_token=tuple(1e-4 / degree for degree in degrees),
        lengths=tuple(limits[-1] * 2 * share / 100 for share in range(100)),
    )
    return ReplayWorld(costs=costs, engines_per_bucket=(engines_each,) * len(degrees), in_flight=in_flight)


class Scripted:
    """Sends each turn to the first engine of the bucket that `bucket(turn)` names; keeps what it was asked and told."""

    def __init__(self, bucket: Callable[[TurnContext], int]) -> None:
        self._bucket = bucket
        self.asked: list[TurnContext] = []
        self.learnt: list[TrajectoryId] = []
        self.known: dict[TrajectoryId, frozenset[TrajectoryId]] = {}
        """What had been learnt when a trajectory started."""
        self.loads: list[list[int]] = []

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        self.asked.append(turn)
        self.loads.append([engine.in_flight for engine in engines])
        self.known.setdefault(turn.trajectory_id, frozenset(self.learnt))
        wanted = self._bucket(turn)
        return next(engine.engine_id for engine in engines if engine.bucket == wanted)

    def learn(self, finished: FinishedTrajectory) -> None:
        self.learnt.append(finished.trajectory_id)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        raise AssertionError(f"{trajectory_id} was recorded whole")


def line(**changes: Any) -> str:
    """A line of a recording with two turns."""
    values: dict[str, Any] = {
        "task": "a",
        "prompt_tok": 10,
        "gen_tok": [5, 7],
        "tool": ["search", "finish"],
        "status": ["error", "final"],
        "ret_tok": [3, 0],
    }
    return json.dumps({name: value for name, value in (values | changes).items() if value is not None})


def recording(folder: Path, *lines: str, name: str = "set.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
