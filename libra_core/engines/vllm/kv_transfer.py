"""How the KV of a context gets from one engine to another, in the words of vLLM's connectors.

A hand-over has two steps. The *offer* is asked of the engine that holds the context; it answers with a ticket. The ticket
travels with a request to the other engine, whose connector loads what it finds and leaves the rest to be computed. What has to
be done for an offer depends on the kind of connector:

- Libra's own copies the blocks into a shared folder (`shared_folder.py`);
- those that pull from the other engine (NIXL, Mooncake) need a request that asks for it, and answer with its address;
- stores that save and find by themselves (LMCache) need nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.sampling_params import RequestOutputKind

from libra_core.engines.vllm.kv_scheduler_half import LOAD, SAVE
from libra_core.engines.vllm.spec import SHARED_FOLDER, EngineSpec
from libra_core.types.ids import PolicyVersion

Ticket = Mapping[str, Any]
_PULLED = ("Nixl", "Mooncake")
"""First letters of the connectors that take a context from the engine which computed it."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferRequest:
    """A request to the engine that holds the context, whose last output tells the ticket."""

    prompt: dict[str, Any]
    sampling: SamplingParams


def offer_request(connector: str, token_ids: Sequence[int], version: PolicyVersion) -> OfferRequest | None:
    """None when the connector needs no telling. `token_ids` are those whose KV is computed, and one more."""
    if connector == SHARED_FOLDER:
        params: dict[str, Any] = {"libra": SAVE, "token_ids": list(token_ids), "version": version}
        return OfferRequest(prompt={"prompt_token_ids": [0]}, sampling=_one_token(params))
    if connector.startswith(_PULLED):
        prompt = {"prompt_token_ids": list(token_ids), "cache_salt": str(version)}
        return OfferRequest(prompt=prompt, sampling=_one_token({"do_remote_decode": True, "do_remote_prefill": False}))
    return None


def ticket_of(connector: str, answer: Mapping[str, Any] | None) -> Ticket | None:
    """From the parameters in an offer's last output; None when there is nothing to load."""
    if connector == SHARED_FOLDER:
        return {"libra": LOAD} if answer and answer.get("saved_tokens") else None
    if connector.startswith(_PULLED):
        return answer
    return {}


def _one_token(params: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        max_tokens=1,
        temperature=1.0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={"kv_transfer_params": params},
    )
