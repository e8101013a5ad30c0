"""How the KV of a context gets from one engine to another, in the words of vLLM's connectors.

A hand-over has two steps. The *offer* is asked of the engine that holds the context; it answers with a ticket. The ticket
travels with a request to the other engine, whose connector loads what it finds and leaves the rest to be computed. What has to
be done depends on the connector:

- Libra's own copies the blocks into a shared folder for an offer (`shared_folder.py`).
- NIXL holds the blocks for an offer and tells its address. It takes over whole prompts alone, so the other engine first runs a
  request of one token on exactly the offered tokens (*adopts* them) and then finds them in its prefix cache.
- Stores save and find by themselves. KV of policy versions is kept apart by the salt of the block hashes, or for
  `LMCacheConnectorV1`, which does not read it, by a tag in its keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from libra_core.engines.vllm.kv_scheduler_half import LOAD, SAVE
from libra_core.engines.vllm.spec import SHARED_FOLDER, EngineSpec
from libra_core.types.ids import PolicyVersion
from libra_core.types.trajectory import GenerationRequest

Ticket = Mapping[str, Any]
"""`version` of the KV; `parameters` for the connector; `adopt_tokens` where those belong to a request of their own."""
_PULLED = ("NixlConnector", "NixlPullConnector")
_TAGGED = "LMCacheConnectorV1"


def transfer_config(spec: EngineSpec) -> KVTransferConfig | None:
    """Every engine gives and takes; what cannot be loaded is computed."""
    asked = spec.kv_transfer
    if asked is None:
        return None
    own = asked.connector == SHARED_FOLDER
    return KVTransferConfig(
        kv_connector="SharedFolderConnector" if own else asked.connector,
        kv_connector_module_path="libra_core.engines.vllm.shared_folder" if own else asked.module,
        kv_role="kv_both",
        kv_connector_extra_config={**asked.options, **({"version": spec.initial_version} if own else {})},
        kv_load_failure_policy="recompute",
    )


def request_parameters(connector: str | None, ticket: Ticket | None, version: PolicyVersion) -> dict[str, Any] | None:
    """What a request tells the connector of an engine that serves this version. A ticket for another version is void."""
    parameters: dict[str, Any] = {"lmcache.tag.policy": str(version)} if connector == _TAGGED else {}
    if ticket is not None and ticket["version"] == version and "adopt_tokens" not in ticket:
        parameters |= ticket["parameters"]
    return parameters or None


async def offer(
    engine: AsyncLLM, connector: str, request_id: str, token_ids: Sequence[int], version: PolicyVersion
) -> Ticket | None:
    """`token_ids` are those whose KV is computed, whole blocks, and one more; `version` is what the engine serves."""
    if connector == SHARED_FOLDER:
        asked: dict[str, Any] = {"libra": SAVE, "token_ids": list(token_ids), "version": version}
        answer = await _one_token(engine, {"prompt_token_ids": [0]}, asked, f"offer-{request_id}")
        return {"version": version, "parameters": {"libra": LOAD}} if answer and answer.get("saved_tokens") else None
    if connector in _PULLED:
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        answer = await _one_token(engine, _prompt(token_ids, version), asked, f"offer-{request_id}")
        return {"version": version, "parameters": answer, "adopt_tokens": len(token_ids)} if answer else None
    return {"version": version, "parameters": {}}


async def adopt(engine: AsyncLLM, request: GenerationRequest, version: PolicyVersion) -> None:
    """Bring what a ticket offers into the prefix cache, where that takes a request of its own."""
    ticket = request.kv_ticket
    if ticket is None or ticket["version"] != version or "adopt_tokens" not in ticket:
        return
    tokens = request.token_ids[: ticket["adopt_tokens"]]
    await _one_token(engine, _prompt(tokens, version), dict(ticket["parameters"]), f"adopt-{request.request_id}")


def _prompt(token_ids: Sequence[int], version: PolicyVersion) -> dict[str, Any]:
    return {"prompt_token_ids": list(token_ids), "cache_salt": str(version)}


async def _one_token(engine: AsyncLLM, prompt: Any, params: dict[str, Any], request_id: str) -> dict[str, Any] | None:
    """Ahead of everything else; returns what the connector answers with the last output."""
    sampling = SamplingParams(
        max_tokens=1,
        temperature=1.0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={"kv_transfer_params": params},
    )
    *_, final = [output async for output in engine.generate(prompt, sampling, request_id, priority=-1)]
    return final.kv_transfer_params
