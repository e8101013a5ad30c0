from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.planning.latency import loaded_engine
from libra_core.planning.lengths import length_table
from libra_core.runtime.rollout.kv_budget import ContextHistory, KvLedger
from libra_core.types.ids import EngineId, TrajectoryId
from libra_core.types.lengths import LengthRecord
from support.planning import problem


@settings(max_examples=20, deadline=None)
@given(prompt=st.integers(2_000, 9_000), generated=st.integers(2_000, 30_000), tp=st.sampled_from([1, 2, 4]))
def test_the_planner_counts_on_as_many_trajectories_as_the_ledger_lets_in(prompt: int, generated: int, tp: int) -> None:
    asked = problem(48, 256, staleness=8)
    lengths = length_table([LengthRecord(prompt_tokens=prompt, generated_tokens=(generated,))] * 4)
    loaded = loaded_engine(asked.costs.engines, tp, lengths, asked.regime)
    engine = EngineId("engine-0")
    ledger = KvLedger(fill=asked.regime.kv_fill, history=ContextHistory(prior_tokens=prompt + generated))
    ledger.add_engine(engine, asked.costs.engines[tp].kv_tokens)
    held = 0
    while ledger.has_room(engine, "", prompt):
        ledger.bind(TrajectoryId(str(held)), engine, "", prompt)
        held += 1
    assert abs(loaded.slots - held) <= 1
