"""What an engine process is started with and what its counters say; neither imports vllm."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from libra_core.engines.vllm.lifetime import HostProcess
from libra_core.engines.vllm.spec import EngineSpec, process_environment
from libra_core.engines.vllm.stats import EngineCounters
from libra_core.engines.vllm.turn import TurnBuffer
from libra_core.errors import ConfigError
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.trajectory import FinishReason, VersionSegment


def spec(**changes: Any) -> EngineSpec:
    return EngineSpec(**({"engine_id": EngineId("e0"), "model_path": "/model"} | changes))


def output(
    tokens: tuple[int, ...],
    *,
    finish: str | None = None,
    spans: tuple[tuple[str, int, int], ...] = (),
    hand_over: dict[str, int] | None = None,
) -> Any:
    completion = SimpleNamespace(
        token_ids=tokens,
        logprobs=[{token: SimpleNamespace(logprob=-float(token))} for token in tokens],
        finish_reason=finish,
        weight_versions=[SimpleNamespace(version=version, start=start, end=end) for version, start, end in spans] or None,
    )
    return SimpleNamespace(outputs=[completion], num_cached_tokens=7, kv_transfer_params=hand_over)


def test_single_cpu_engine_keeps_its_worker_in_the_core_process() -> None:
    variables = process_environment(spec(threads=3))
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_tensor_parallel_engine_uses_worker_processes() -> None:
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in process_environment(spec(tp=2))


def test_cuda_environment_holds_nothing_for_cpus() -> None:
    variables = process_environment(spec(device="cuda"))
    assert not {"OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_ENABLE_V1_MULTIPROCESSING"} & variables.keys()


def test_kv_space_in_whole_gibibytes_is_never_set() -> None:
    assert "VLLM_CPU_KVCACHE_SPACE" not in process_environment(spec())


def test_block_size_that_cpu_attention_refuses_is_named() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.block_size = 16"):
        spec(block_size=16)


def test_spec_module_imports_neither_vllm_nor_torch() -> None:
    code = "import sys, libra_core.engines.vllm.spec; sys.exit(int('vllm' in sys.modules or 'torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_counters_add_up_over_steps_and_restart_at_zero() -> None:
    counters = EngineCounters()
    scheduler = SimpleNamespace(num_running_reqs=2, num_waiting_reqs=1, num_skipped_waiting_reqs=1, kv_cache_usage=0.25)
    prompt = SimpleNamespace(total=10, cached_tokens=4)
    step = SimpleNamespace(num_generation_tokens=3, prompt_token_stats=prompt, num_preempted_reqs=1)
    counters.record(scheduler, step)
    counters.record(None, step)
    stats = counters.snapshot(EngineId("e0"), PolicyVersion(5))
    assert (stats.running, stats.waiting, stats.kv_usage, stats.policy_version) == (2, 2, 0.25, 5)
    assert (stats.generated_tokens, stats.prompt_tokens, stats.cached_prompt_tokens, stats.preemptions) == (6, 20, 8, 2)
    counters.restart()
    assert counters.snapshot(EngineId("e0"), PolicyVersion(5)).generated_tokens == 0


def test_overlapping_requests_count_as_busy_once() -> None:
    counters = EngineCounters()
    counters.request_started()
    counters.request_started()
    counters.request_finished()
    assert counters.snapshot(EngineId("e0"), PolicyVersion(0)).busy_s > 0.0
    counters.request_finished()
    first = counters.snapshot(EngineId("e0"), PolicyVersion(0)).busy_s
    assert counters.snapshot(EngineId("e0"), PolicyVersion(0)).busy_s == first


def test_steps_that_only_decode_are_told_once_with_their_sequences() -> None:
    counters = EngineCounters()
    counters.request_started()
    for generated, prompt, cached in ((1, 40, 32), (2, 0, 0), (3, 32, 32)):
        tokens = SimpleNamespace(total=prompt, cached_tokens=cached)
        counters.record(None, SimpleNamespace(num_generation_tokens=generated, prompt_token_stats=tokens, num_preempted_reqs=0))
    steps = counters.take_steps()
    assert [sequences for sequences, _ in steps] == [2, 3]
    assert all(seconds > 0 for _, seconds in steps)
    assert counters.take_steps() == []


def test_requests_that_a_swap_sends_back_are_no_preemptions_even_before_their_first_step() -> None:
    counters = EngineCounters()
    counters.request_started()
    counters.request_started()
    counters.expect_preemptions()
    prompt = SimpleNamespace(total=0, cached_tokens=0)
    counters.record(None, SimpleNamespace(num_generation_tokens=0, prompt_token_stats=prompt, num_preempted_reqs=2))
    assert counters.snapshot(EngineId("e0"), PolicyVersion(0)).preemptions == 0
    counters.record(None, SimpleNamespace(num_generation_tokens=0, prompt_token_stats=prompt, num_preempted_reqs=1))
    assert counters.snapshot(EngineId("e0"), PolicyVersion(0)).preemptions == 1


def test_a_paused_engine_is_not_busy_whatever_waits_in_it() -> None:
    counters = EngineCounters()
    counters.request_started()
    counters.paused()
    held = counters.snapshot(EngineId("e0"), PolicyVersion(0))
    counters.request_started()
    counters.paused()
    later = counters.snapshot(EngineId("e0"), PolicyVersion(0))
    assert later.busy_s == held.busy_s
    assert later.paused_s > held.paused_s
    counters.resumed()
    counters.request_finished()
    after = counters.snapshot(EngineId("e0"), PolicyVersion(0))
    assert after.busy_s > held.busy_s
    assert counters.snapshot(EngineId("e0"), PolicyVersion(0)).paused_s == after.paused_s


def test_aborted_turn_keeps_every_token_with_the_versions_seen() -> None:
    turn = TurnBuffer()
    turn.add(output((3, 4)), PolicyVersion(1))
    turn.add(output((5,)), PolicyVersion(2))
    partial = turn.so_far()
    assert (partial.token_ids, partial.logprobs) == ((3, 4, 5), (-3.0, -4.0, -5.0))
    assert partial.finish_reason is FinishReason.ABORT
    assert partial.versions == (
        VersionSegment(version=PolicyVersion(1), start=0, end=2),
        VersionSegment(version=PolicyVersion(2), start=2, end=3),
    )


def test_finished_turn_takes_the_spans_of_the_engine() -> None:
    turn = TurnBuffer()
    turn.add(output((3, 4)), PolicyVersion(2))
    turn.add(output((5,), finish="stop", spans=(("1", 0, 2), ("2", 2, 3))), PolicyVersion(2))
    assert [segment.version for segment in turn.finished().versions] == [1, 2]
    assert (turn.finished().cached_tokens, turn.finished().loaded_tokens) == (7, None)


def test_kv_that_was_lost_on_the_way_counts_as_computed() -> None:
    turn = TurnBuffer()
    turn.add(output((3,), finish="length", hand_over={"loaded_tokens": 4, "lost_tokens": 2}), PolicyVersion(0))
    assert (turn.finished().loaded_tokens, turn.finished().cached_tokens) == (4, 5)


def test_turn_aborted_before_its_first_token_is_empty() -> None:
    turn = TurnBuffer()
    turn.add(output((), finish="abort"), PolicyVersion(0))
    assert (turn.finished().token_ids, turn.finished().versions) == ((), ())


def test_a_recycled_process_id_is_not_taken_for_the_host() -> None:
    host = HostProcess.current()
    assert host.is_alive()
    assert not HostProcess(host.pid, host.create_time_s - 1.0).is_alive()
