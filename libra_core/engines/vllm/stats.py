"""Counters of one engine, fed by vLLM's stat logger once per scheduler step. Imports no vllm: its objects are read by name."""

import time
from collections import deque
from typing import Any

from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EngineStats

_KEEP_STEPS = 1024


class EngineCounters:
    """vLLM calls it as a stat logger factory and then as the logger itself. Lives on the engine's event loop alone."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from zero; no request may be running."""
        self._running = 0
        self._waiting = 0
        self._kv_usage = 0.0
        self._generated_tokens = 0
        self._decode_steps = 0
        self._prompt_tokens = 0
        self._cached_prompt_tokens = 0
        self._preemptions = 0
        self._expected_preemptions = 0
        self._unfinished = 0
        self._busy_s = 0.0
        self._busy_since_s = 0.0
        self._paused_s = 0.0
        self._paused_since_s: float | None = None
        self._prefill_s = 0.0
        self._recorded_s = 0.0
        self._steps: deque[tuple[int, float]] = deque(maxlen=_KEEP_STEPS)

    def __call__(self, _vllm_config: Any, _engine_index: int = 0) -> "EngineCounters":
        return self

    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
        if scheduler_stats is not None:
            self._running = scheduler_stats.num_running_reqs
            self._waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self._kv_usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self._generated_tokens += iteration_stats.num_generation_tokens
            self._decode_steps += iteration_stats.num_generation_tokens > 0
            self._prompt_tokens += iteration_stats.prompt_token_stats.total
            self._cached_prompt_tokens += iteration_stats.prompt_token_stats.cached_tokens
            self._count_preemptions(iteration_stats.num_preempted_reqs)
            self._share_time(iteration_stats)

    def expect_preemptions(self) -> None:
        """A publication is about to send every running request back to recompute its context; that is not want of memory."""
        self._expected_preemptions = self._unfinished

    def _share_time(self, iteration_stats: Any) -> None:
        """Every computed token passes through the same layers, so the step's time is split by their number."""
        now_s = time.monotonic()
        took_s = now_s - max(self._recorded_s, self._busy_since_s)
        self._recorded_s = now_s
        prompt_tokens = iteration_stats.prompt_token_stats.total - iteration_stats.prompt_token_stats.cached_tokens
        computed = prompt_tokens + iteration_stats.num_generation_tokens
        if self._unfinished and computed:
            self._prefill_s += took_s * prompt_tokens / computed
            if not prompt_tokens:
                self._steps.append((iteration_stats.num_generation_tokens, took_s))

    def take_steps(self) -> list[tuple[int, float]]:
        """Sequences and seconds of each step since the last call that decoded and computed no prompt; the latest thousand."""
        steps = list(self._steps)
        self._steps.clear()
        return steps

    def _count_preemptions(self, count: int) -> None:
        forgiven = min(count, self._expected_preemptions)
        self._expected_preemptions -= forgiven
        self._preemptions += count - forgiven

    def log_engine_initialized(self) -> None: ...

    def log(self) -> None: ...

    def record_sleep_state(self, is_awake: int, level: int) -> None: ...

    def request_started(self) -> None:
        if self._unfinished == 0:
            self._busy_since_s = time.monotonic()
        self._unfinished += 1

    def request_finished(self) -> None:
        if self._unfinished == 1:
            self._busy_s += self._busy_now_s()
        self._unfinished -= 1

    def paused(self) -> None:
        """Generation stops; a second pause before `resumed` changes nothing."""
        if self._paused_since_s is None:
            self._busy_s += self._busy_now_s()
            self._paused_since_s = time.monotonic()

    def resumed(self) -> None:
        if self._paused_since_s is not None:
            self._busy_since_s = time.monotonic()
            self._paused_s += self._busy_since_s - self._paused_since_s
            self._paused_since_s = None

    def _busy_now_s(self) -> float:
        """Since the engine became busy, when it is; a paused engine is not."""
        return time.monotonic() - self._busy_since_s if self._unfinished and self._paused_since_s is None else 0.0

    def snapshot(self, engine_id: EngineId, version: PolicyVersion) -> EngineStats:
        paused_now_s = 0.0 if self._paused_since_s is None else time.monotonic() - self._paused_since_s
        return EngineStats(
            engine_id=engine_id,
            running=self._running,
            waiting=self._waiting,
            kv_usage=self._kv_usage,
            policy_version=version,
            generated_tokens=self._generated_tokens,
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_prompt_tokens,
            preemptions=self._preemptions,
            busy_s=self._busy_s + self._busy_now_s(),
            paused_s=self._paused_s + paused_now_s,
            prefill_s=self._prefill_s,
            decode_steps=self._decode_steps,
        )
