"""What an engine asks of vLLM, in vLLM's words; deadlines and what a failure means are the engine's."""

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Sequence
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM

from libra_core.engines.vllm.arguments import sampling_parameters, scoring_parameters
from libra_core.engines.vllm.kv_transfer import request_parameters
from libra_core.engines.vllm.spec import EngineSpec
from libra_core.engines.weight_source import WeightSource
from libra_core.types.ids import PolicyVersion
from libra_core.types.trajectory import GenerationRequest

_STAGING_POLL_S = 0.005


async def process_ids(engine: AsyncLLM) -> list[int]:
    """Of the engine core and the workers; not of this process."""
    pairs = await engine.collective_rpc("libra_pids")
    return sorted({pid for pair in pairs for pid in pair if pid != os.getpid()})


def sampled(engine: AsyncLLM, spec: EngineSpec, request: GenerationRequest, version: PolicyVersion) -> AsyncIterator[Any]:
    """The prefix cache is keyed by the version of the weights."""
    connector = None if spec.kv_transfer is None else spec.kv_transfer.connector
    sampling = sampling_parameters(request, request_parameters(connector, request.kv_ticket, version))
    prompt: Any = {"prompt_token_ids": list(request.token_ids), "cache_salt": str(version)}
    return engine.generate(prompt, sampling, request.request_id, priority=request.priority)


async def scored(engine: AsyncLLM, token_ids: Sequence[int], request_id: str) -> tuple[float, ...]:
    """Log-probability of each token; position 0 is 0."""
    prompt: Any = {"prompt_token_ids": list(token_ids)}
    stream = engine.generate(prompt, scoring_parameters(), request_id, priority=-1)
    *_, final = [output async for output in stream]
    rows = zip(token_ids, final.prompt_logprobs, strict=True)
    return tuple(0.0 if row is None else row[token].logprob for token, row in rows)


async def open_transport(engine: AsyncLLM, **info: object) -> None:
    """`info`: the fields of the workers' `TransportInfo`."""
    await engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))


async def stage(engine: AsyncLLM, source: WeightSource, version: PolicyVersion) -> list[str]:
    """Bring tensors into the workers' memory beside what they do; returns the failures."""
    await engine.collective_rpc("libra_start_staging", args=(pickle.dumps(source), version))
    while True:
        states = await engine.collective_rpc("libra_staging_state")
        if all(done for done, _ in states):
            return [failure for _, failure in states if failure]
        await asyncio.sleep(_STAGING_POLL_S)


async def load(engine: AsyncLLM, version: PolicyVersion) -> None:
    """What was staged; the engine is paused."""
    await engine.start_weight_update()
    await engine.update_weights(WeightTransferUpdateRequest(update_info={"version": version}))
    await engine.finish_weight_update(str(version))


async def fall_asleep(engine: AsyncLLM, spec: EngineSpec) -> None:
    """On CUDA: weights to host memory, KV cache dropped. Elsewhere vLLM has no memory to give back, and only pauses."""
    await engine.sleep(level=1 if spec.device == "cuda" else 0)
