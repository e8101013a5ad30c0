"""Asks the engine before a move to hand the context's KV over."""

import logging
from collections.abc import Mapping
from typing import Any

from ray.exceptions import RayError

from libra_core.config.rollout import RolloutConfig
from libra_core.errors import LibraError
from libra_core.runtime.base.rpc import reply
from libra_core.runtime.rollout.fleet import Fleet, first_line
from libra_core.runtime.rollout.prefill_ahead import HeldContext, Offer, no_offer
from libra_core.types.trajectory import GenerationRequest

logger = logging.getLogger(__name__)


class KvOffers:
    """Waits for the source at most `deadline_s`; a source that fails is judged by its own turns, not here."""

    def __init__(self, fleet: Fleet, deadline_s: float) -> None:
        self._fleet = fleet
        self._deadline_s = deadline_s

    async def __call__(self, held: HeldContext, request: GenerationRequest) -> Mapping[str, Any] | None:
        member = self._fleet.source(held.engine_id)
        if member is None:
            return None
        member.running += 1  # an engine that leaves stays until it has answered
        tokens = request.token_ids[: held.tokens + 1]
        asked = member.handle.offer_kv.remote(request.request_id, tokens, held.version)
        try:
            return await reply(request.request_id, f"{held.engine_id} to hand its context over", asked, self._deadline_s)
        except (LibraError, RayError) as error:
            logger.info("%s handed nothing over for %s: %s", held.engine_id, request.request_id, first_line(error))
        finally:
            member.running -= 1
        return None


def offers_of(config: RolloutConfig, fleet: Fleet) -> Offer:
    """As configured; without a connector nobody is asked."""
    transfer = config.kv_transfer
    return no_offer if transfer.connector is None else KvOffers(fleet, transfer.offer_deadline_s)
