"""One vLLM `AsyncLLM`: turns in, turns out, weights replaced in place.

It leaves to others: which engine serves what, retries, and the deadline of a turn.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

import psutil
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from libra_core.engines.log_tail import last_words, own_logs, points_back
from libra_core.engines.vllm import exchanges
from libra_core.engines.vllm.arguments import engine_arguments
from libra_core.engines.vllm.kv_transfer import Ticket, adopt, offer
from libra_core.engines.vllm.lifetime import end_processes, unlink_shared_memory
from libra_core.engines.vllm.spec import EngineFacts, EngineSpec
from libra_core.engines.vllm.stats import EngineCounters
from libra_core.engines.vllm.turn import TurnBuffer
from libra_core.engines.weight_source import WeightSource
from libra_core.errors import CheckpointError, EngineLostError, LibraError
from libra_core.types.ids import PolicyVersion
from libra_core.types.reports import EnginePublication, EngineStats
from libra_core.types.trajectory import GeneratedTurn, GenerationRequest

_CONTROL_DEADLINE_S = 60.0
_LOAD_DEADLINE_S = 600.0
_STOP_GRACE_S = 10.0
_FIRST = GenerationRequest(request_id="warm-up", token_ids=(0, 0), max_new_tokens=2, temperature=1.0, stop_token_ids=())
"""vLLM imports and compiles much of its request path on first use, for seconds; no trajectory should wait for it."""


class VllmEngine:
    """All state belongs to the event loop that called `start`; every method is called on it.

    Requests run beside one another and beside `update_weights`, of which one runs at a time. An engine that failed is lost for
    good: `_fault` says why, and every later call raises it as `EngineLostError`. Shut down last, after its requests.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._engine: AsyncLLM | None = None
        self._version = spec.initial_version
        self._counters = EngineCounters()
        self._turns: dict[str, TurnBuffer] = {}
        self._processes: list[psutil.Process] = []
        self._publication = asyncio.Lock()
        self._fault: str | None = None
        self._num_scores = 0
        self._asleep = False

    async def start(self) -> EngineFacts:
        """Build the model and the KV cache. Blocks the event loop: nothing else can run before the engine is there."""
        started_s = time.monotonic()
        try:
            self._engine = AsyncLLM.from_engine_args(engine_arguments(self._spec), stat_loggers=[self._counters])
        except Exception as error:
            what = f"{self._spec.engine_id} did not start with {self._spec.model_path}"
            reason = last_words(own_logs()) if points_back(str(error)) else ""
            raise EngineLostError(f"{what}: {reason or error}") from error
        async with self._expect("start", self._spec.start_deadline_s) as engine:
            self._processes = [psutil.Process(pid) for pid in await exchanges.process_ids(engine)]
            await engine.update_weight_version(str(self._version))
        async with self._expect("answer a first request", self._spec.start_deadline_s):
            await self.generate(_FIRST)
        self._counters.restart()
        pids = tuple(process.pid for process in self._processes)
        for pid in pids:
            unlink_shared_memory(pid)
        cache = engine.vllm_config.cache_config
        return EngineFacts(kv_tokens=cache.num_gpu_blocks * cache.block_size, start_s=time.monotonic() - started_s, pids=pids)

    async def generate(self, request: GenerationRequest) -> GeneratedTurn:
        """Sample one turn. Waits while the engine is paused; a cancelled call aborts its request.

        Raises:
            ValueError: the request cannot fit the model's context, or its id is running already.
            EngineLostError: the engine died or is out of service.
        """
        engine = self._alive()
        _require_fit(self._spec, engine, request.token_ids, request.max_new_tokens)
        if request.request_id in self._turns:
            raise ValueError(f"{self._spec.engine_id}: request {request.request_id} is running already")
        turn = self._turns[request.request_id] = TurnBuffer()
        self._counters.request_started()
        try:
            await adopt(engine, request, self._version)
            async for output in exchanges.sampled(engine, self._spec, request, self._version):
                turn.add(output, self._version)
                if turn.abort_requested and not output.finished:
                    await engine.abort(request.request_id)
        except EngineDeadError as error:
            raise self._lose(self._death("")) from error
        finally:
            del self._turns[request.request_id]
            self._counters.request_finished()
        return turn.finished()

    async def offer_kv(self, request_id: str, token_ids: Sequence[int], version: PolicyVersion) -> Ticket | None:
        """Make the KV of a context that is computed here loadable by another engine, which the ticket enables.

        None when nothing can be handed over: no connector, other weights by now, or evicted. Waits while the engine is paused.
        """
        engine, transfer = self._alive(), self._spec.kv_transfer
        if transfer is None or version != self._version:
            return None
        try:
            return await offer(engine, transfer.connector, request_id, token_ids, version)
        except EngineDeadError as error:
            raise self._lose(self._death("")) from error

    async def partial(self, request_id: str) -> GeneratedTurn | None:
        """What a running request has sampled so far, as if it were aborted now; None when it is not running."""
        turn = self._turns.get(request_id)
        return None if turn is None else turn.so_far()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; their `generate` returns every token sampled so far. Ids that are not running are ignored."""
        running = [request_id for request_id in request_ids if request_id in self._turns]
        for request_id in running:
            self._turns[request_id].abort_requested = True
        async with self._expect("abort requests", _CONTROL_DEADLINE_S) as engine:
            await engine.abort(running)

    async def abort_all(self) -> None:
        await self.abort(tuple(self._turns))

    async def stats(self) -> EngineStats:
        """From vLLM's stat logger, without a round trip to the engine process."""
        return self._counters.snapshot(self._spec.engine_id, self._version)

    async def take_steps(self) -> list[tuple[int, float]]:
        """See `EngineCounters.take_steps`."""
        return self._counters.take_steps()

    async def ping(self) -> None:
        """A round trip to every worker. Raises `EngineLostError` when one does not answer."""
        async with self._expect("answer", _CONTROL_DEADLINE_S) as engine:
            await engine.collective_rpc("libra_staging_state")

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probability of each token given those before it, at temperature 1, computed afresh. `[L]`; position 0 is 0."""
        _require_fit(self._spec, self._alive(), token_ids, 1)
        self._num_scores += 1
        async with self._expect("score a prompt", _CONTROL_DEADLINE_S) as engine:
            return await exchanges.scored(engine, token_ids, f"score-{self._num_scores}")

    async def open_transport(
        self,
        kind: Literal["file", "broadcast"],
        host: str,
        port: int,
        rank_offset: int,
        world_size: int,
        timeout_s: float = _CONTROL_DEADLINE_S,
    ) -> None:
        """Prepare for `update_weights`, once. A broadcast waits for all ranks of its group, the trainer's included; a group that
        does not come about within `timeout_s` costs the engine nothing, and no weights reach it."""
        async with self._expect(f"join the {kind} transport at {host}:{port}", 2 * timeout_s) as engine:
            await exchanges.open_transport(
                engine, kind=kind, host=host, port=port, rank_offset=rank_offset, world_size=world_size, timeout_s=timeout_s
            )

    async def update_weights(
        self, source: WeightSource, version: PolicyVersion, in_flight: Literal["keep", "abort"], recompute_kv: bool
    ) -> EnginePublication:
        """Replace the weights: stage while generating, then pause, load and resume.

        New requests never see KV of an older version: the prefix cache is keyed by version. `recompute_kv` also recomputes the
        context of running requests; without it they continue on their old KV.

        Raises:
            CheckpointError: the weights could not be staged; the engine goes on with the old ones.
            EngineLostError: anything later; the engine stays paused for good and its requests return what they have.
        """
        async with self._publication:
            await self._stage(source, version)
            try:
                pause_s = await _seconds(self._pause(in_flight, recompute_kv))
                load_s = await _seconds(self._load(version))
                resume_s = await _seconds(self._resume())
            except BaseException:
                await self._retire(f"it stays paused: loading version {version} was cut short")
                raise
        return EnginePublication(engine_id=self._spec.engine_id, pause_s=pause_s, load_s=load_s, resume_s=resume_s)

    async def hold(self) -> None:
        """Stop generating; running requests keep their tokens and KV. The next `update_weights` ends the hold."""
        async with self._publication, self._expect("hold", _CONTROL_DEADLINE_S) as engine:
            await engine.pause_generation(mode="keep", clear_cache=False)
            self._counters.paused()

    async def sleep(self) -> None:
        """Free the devices: on CUDA the weights go to host memory and the KV cache is dropped; on CPU both stay where they are.

        Requests that run end; their `generate` returns what they have. Until `wake`, calls for tokens or weights raise
        `EngineLostError`. Idempotent.
        """
        if self._asleep:
            return
        async with self._publication:
            await self.abort_all()
            async with self._expect("fall asleep", _LOAD_DEADLINE_S) as engine:
                await exchanges.fall_asleep(engine, self._spec)
            self._asleep = True

    async def wake(self) -> None:
        """Go on with the weights of before; they may be old by now. Idempotent."""
        if self._asleep:
            self._asleep = False
            async with self._expect("wake up", _LOAD_DEADLINE_S) as engine:
                await engine.wake_up()

    async def stop(self) -> None:
        """End the engine and its processes within a bounded time; safe to call twice or after a failure."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        self._fault = self._fault or "it was stopped"
        engine.shutdown(timeout=0)  # asked politely it takes seconds, and nothing in it needs saving
        await asyncio.to_thread(end_processes, self._processes, grace_s=_STOP_GRACE_S)

    async def _stage(self, source: WeightSource, version: PolicyVersion) -> None:
        async with self._expect(f"stage version {version}", _LOAD_DEADLINE_S) as engine:
            failures = await exchanges.stage(engine, source, version)
        if failures:
            raise CheckpointError(
                f"{self._spec.engine_id} keeps version {self._version}: version {version} could not be staged from "
                f"{type(source).__name__}: {failures[0]}"
            )

    async def _pause(self, in_flight: Literal["keep", "abort"], recompute_kv: bool) -> None:
        async with self._expect("pause", _CONTROL_DEADLINE_S) as engine:
            if recompute_kv:
                self._counters.expect_preemptions()
            self._counters.paused()
            await engine.pause_generation(mode=in_flight, clear_cache=recompute_kv)

    async def _load(self, version: PolicyVersion) -> None:
        async with self._expect(f"load version {version}; it stays paused", _LOAD_DEADLINE_S) as engine:
            await exchanges.load(engine, version)
        self._version = version

    async def _resume(self) -> None:
        async with self._expect("resume", _CONTROL_DEADLINE_S) as engine:
            await engine.resume_generation()
            self._counters.resumed()

    async def _retire(self, reason: str) -> None:
        """Serve no more; requests that are running return with what they have."""
        self._fault = self._fault or reason
        if self._engine is not None and not self._engine.errored:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._engine.abort(tuple(self._turns)), _CONTROL_DEADLINE_S)

    def _alive(self) -> AsyncLLM:
        if self._fault is not None:
            raise EngineLostError(f"{self._spec.engine_id} is out of service: {self._fault}")
        if self._engine is None:
            raise EngineLostError(f"{self._spec.engine_id} has not been started")
        if self._asleep:
            raise EngineLostError(f"{self._spec.engine_id} sleeps")
        return self._engine

    def _death(self, when: str) -> str:
        """Said once with what the log ends with; calls that fail after the first one only repeat it."""
        line = last_words(own_logs()) if self._fault is None else ""
        return f"its engine process died{when}{f'; its log ends with: {line}' if line else ''}"

    def _lose(self, reason: str) -> EngineLostError:
        self._fault = self._fault or reason
        return EngineLostError(f"{self._spec.engine_id} is lost: {reason}")

    @asynccontextmanager
    async def _expect(self, what: str, deadline_s: float) -> AsyncIterator[AsyncLLM]:
        """An exchange with the engine process: past the deadline, or on any error of vLLM, the engine is lost."""
        engine = self._alive()
        try:
            async with asyncio.timeout(deadline_s):
                yield engine
        except LibraError:
            raise
        except TimeoutError as error:
            raise self._lose(f"it did not {what} within {deadline_s:.0f} s") from error
        except EngineDeadError as error:
            raise self._lose(self._death(f" when asked to {what}")) from error
        except Exception as error:
            raise self._lose(f"it failed to {what}: {error}") from error


async def _seconds(work: Awaitable[None]) -> float:
    started_s = time.monotonic()
    await work
    return time.monotonic() - started_s


def _require_fit(spec: EngineSpec, engine: AsyncLLM, token_ids: Sequence[int], new_tokens: int) -> None:
    """vLLM checks lengths late and ids not at all: an id beyond the vocabulary would kill the engine process."""
    length, bound = len(token_ids) + new_tokens, spec.max_model_len
    if not token_ids or length > bound:
        raise ValueError(
            f"{spec.engine_id}: a prompt of {len(token_ids)} and {new_tokens} more tokens do not fit into 1..{bound} "
            "tokens; shorten the prompt or raise rollout.max_context_tokens"
        )
    vocabulary = engine.model_config.get_vocab_size()
    if not 0 <= min(token_ids) <= max(token_ids) < vocabulary:
        raise ValueError(
            f"{spec.engine_id}: token ids {min(token_ids)}..{max(token_ids)} are outside the model's vocabulary "
            f"0..{vocabulary - 1}; tokenizer and model do not belong together"
        )
