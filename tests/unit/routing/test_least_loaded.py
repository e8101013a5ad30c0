"""Least-loaded routing spreads new trajectories and leaves running ones where their prefix is cached."""

from collections import Counter

from libra_core.ports.routing import EngineLoad, TurnContext
from libra_core.routing.least_loaded import LeastLoaded
from libra_core.types.ids import EngineId, TrajectoryId


def engines(**loads: int) -> list[EngineLoad]:
    return [EngineLoad(engine_id=EngineId(name), tp=1, in_flight=load) for name, load in loads.items()]


def turn(current: str | None = None) -> TurnContext:
    engine = None if current is None else EngineId(current)
    return TurnContext(trajectory_id=TrajectoryId("t"), kind="", order=0, current=engine, context_tokens=10, tool_returns=())


def test_a_new_trajectory_goes_to_the_emptiest_engine() -> None:
    assert LeastLoaded().choose(turn(), engines(a=3, b=1, c=2)) == "b"


def test_ties_are_broken_at_random() -> None:
    policy = LeastLoaded(seed=1)
    counts = Counter(policy.choose(turn(), engines(a=0, b=0)) for _ in range(400))
    assert min(counts.values()) > 140


def test_a_running_trajectory_keeps_its_engine_for_small_differences() -> None:
    assert LeastLoaded(move_margin=8).choose(turn("a"), engines(a=7, b=0)) == "a"


def test_it_moves_when_its_engine_is_clearly_fuller() -> None:
    assert LeastLoaded(move_margin=8).choose(turn("a"), engines(a=8, b=0)) == "b"


def test_it_moves_when_its_engine_is_gone() -> None:
    assert LeastLoaded().choose(turn("lost"), engines(b=5)) == "b"


def test_load_is_counted_per_gpu() -> None:
    wide = EngineLoad(engine_id=EngineId("wide"), tp=4, in_flight=4)
    narrow = EngineLoad(engine_id=EngineId("narrow"), tp=1, in_flight=2)
    assert LeastLoaded().choose(turn(), [wide, narrow]) == "wide"
