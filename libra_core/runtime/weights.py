"""Weight publication as seen by the fleet: one order, every engine, a deadline each."""

import asyncio
from dataclasses import dataclass

from ray.exceptions import RayActorError, RayTaskError

from libra_core.config.training import PublicationConfig
from libra_core.engines.weight_source import WeightSource
from libra_core.errors import EngineLostError
from libra_core.runtime.fleet import EngineMember, first_line
from libra_core.types.ids import PolicyVersion
from libra_core.types.reports import EnginePublication


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationOrder:
    """Which weights, and where an engine reads them."""

    version: PolicyVersion
    source: WeightSource


async def load_weights(member: EngineMember, order: PublicationOrder, config: PublicationConfig) -> EnginePublication:
    """Swap one engine's weights; raises `EngineLostError` when it dies, fails or passes the deadline."""
    try:
        return await asyncio.wait_for(
            member.handle.update_weights.remote(order.source, order.version, config.in_flight, config.recompute_kv),
            config.deadline_s,
        )
    except TimeoutError:
        reason = f"did not load version {order.version} within publication.deadline_s = {config.deadline_s:.0f} s"
    except (RayActorError, RayTaskError) as error:
        reason = f"failed to load version {order.version}: {first_line(error)}"
    raise EngineLostError(f"{member.engine_id} {reason}")
