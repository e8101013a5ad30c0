"""What one engine does must equal what can be written down in closed form."""

from dataclasses import replace

import numpy as np
import pytest

from libra_core.simulation.truth import load_truth
from libra_core.simulation.world import NO_CAP, World
from support.simulation import ENGINE, agents, finished, pacing, plan, single_turns, truth


def decode_makespan(generated: np.ndarray, prompt: float) -> float:
    """The closed form of a decode (docs/costs.md#formulas): all start together, and each leaves when it is done."""
    linear = ENGINE.a_s * generated.max() + ENGINE.b_s * generated.sum()
    return float(linear + ENGINE.c_s * (prompt * generated + generated**2 / 2).sum())


def prefill_seconds(count: int, prompt: float) -> float:
    return count * (ENGINE.prefill_b_s_per_token * prompt + ENGINE.prefill_c_s_per_token2 * prompt**2 / 2)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_engine_without_tools_takes_the_time_of_the_closed_form(seed: int) -> None:
    generated = np.floor(np.random.default_rng(seed).lognormal(7, 0.8, 64))
    work = single_turns(list(generated), prompt=300)
    world = World(truth(), work, pacing(64, 2, staleness=0), plan(engines=1))
    world.run_to(1)
    expected = decode_makespan(generated, 300) + prefill_seconds(64, 300)
    assert float(world.state.trajectories.finished_s.max()) == pytest.approx(expected, rel=0.005)


def test_littles_law_holds_on_the_engines() -> None:
    """Mean number in the system is arrival rate times mean latency, over a window in which nobody is cut off."""
    work = agents(512)
    world = finished(work, pacing(64, staleness=1), plan(engines=3))
    rows = world.state.trajectories
    start, end = rows.started_s.min(), rows.finished_s.max()
    moments = np.linspace(start, end, 20_001)[:-1] + (end - start) / 40_000
    inside = (rows.started_s[None, :] <= moments[:, None]) & (moments[:, None] < rows.finished_s[None, :])
    rate = len(work) / (end - start)
    assert inside.sum(axis=1).mean() == pytest.approx(rate * (rows.finished_s - rows.started_s).mean(), rel=0.01)


def test_time_of_an_engine_is_accounted_for_without_rest() -> None:
    world = finished(agents(256), pacing(64, staleness=1), plan(engines=2), world_truth=truth(publication_s=3.0))
    breakdown = world.fleet_time()
    parts = breakdown.decode_s + breakdown.prefill_s + breakdown.reprefill_s + breakdown.paused_s + breakdown.starved_s
    assert parts == pytest.approx(breakdown.alive_s, rel=1e-6)
    assert breakdown.alive_s == pytest.approx(4 * world.now_s)


def test_running_contexts_add_up_to_the_engines_total() -> None:
    work = agents(256)
    world = World(truth(), work, pacing(64, staleness=1), plan(engines=2))
    for version in (1, 2, 3):
        world.run_to(version)
        for e in world.alive():
            engine = world.state.engines[e]
            running = world.state.running[e, : engine.running]
            rows = world.state.trajectories[running]
            assert engine.context == pytest.approx((rows.held + engine.decoded - rows.began).sum(), abs=1e-3)


def test_a_full_kv_cache_preempts_and_everything_still_ends() -> None:
    small = replace(ENGINE, kv_tokens=4_000)
    work = single_turns([900] * 32, prompt=100)
    world = finished(work, pacing(32, 2, staleness=0, kv_fill=NO_CAP), plan(engines=1), world_truth=truth(small))
    assert world.state.run[0].preemptions > 0
    assert world.state.trajectories.generated == pytest.approx(np.full(32, 900.0))


def test_a_capped_engine_neither_preempts_nor_prefills_again() -> None:
    small = replace(ENGINE, kv_tokens=20_000)
    work = agents(256)
    capped = finished(work, pacing(64, staleness=1, kv_fill=0.6), plan(engines=2), world_truth=truth(small))
    crowded = finished(work, pacing(64, staleness=1, kv_fill=NO_CAP), plan(engines=2), world_truth=truth(small))
    assert capped.state.run[0].reprefilled_tokens < 0.1 * crowded.state.run[0].reprefilled_tokens


def test_prefixes_survive_tool_calls_while_there_is_room() -> None:
    world = finished(agents(64, tool_s=0.1), pacing(64, staleness=0), plan(engines=2))
    assert world.state.run[0].reprefilled_tokens == 0


def test_a_long_prefill_delays_its_own_first_token_by_its_chunks() -> None:
    work = single_turns([10, 10], prompt=20_000)
    whole = finished(work, pacing(2, 2, staleness=0, chunk_tokens=100_000), plan(engines=1))
    chunked = finished(work, pacing(2, 2, staleness=0, chunk_tokens=2_000), plan(engines=1))
    ends = [float(world.state.trajectories.finished_s.max()) for world in (whole, chunked)]
    assert ends[1] - ends[0] == pytest.approx(9 * (ENGINE.a_s + 2 * ENGINE.b_s + 40_000 * ENGINE.c_s), rel=0.05)


def test_from_1k_to_32k_tokens_rollout_grows_far_more_than_linearly_and_more_than_training() -> None:
    """64 sequences on one A800 engine of tp 8. The paper measured 95x against 3.9x, in a way that it does not tell."""
    tables = load_truth("configs/study/truth/qwen3_14b_a800.yaml")
    seconds: list[float] = []
    for length in (1024, 32_768):
        work = single_turns([length] * 64, prompt=100)
        world = finished(work, pacing(64, 2, staleness=0), plan(engines=1, tp=8), world_truth=tables)
        seconds.append(float(world.state.trajectories.finished_s.max()))
    linear, pairs = tables.trainer.flop_coefficients()
    training = [linear * length + pairs * length**2 for length in (1024, 32_768)]
    assert seconds[1] / seconds[0] == pytest.approx(85, rel=0.05)
    assert training[1] / training[0] == pytest.approx(46, rel=0.02)
